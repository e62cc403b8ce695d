# SPDX-License-Identifier: Apache-2.0
titan_test(storage_test LABEL unit SOURCES unit/core/storage/key_value_store_test.cc unit/core/storage/segment_log_test.cc USES core/storage)
