# SPDX-License-Identifier: Apache-2.0
titan_test(tidy_test LABEL unit SOURCES unit/tidy/tidy_test.cc)
