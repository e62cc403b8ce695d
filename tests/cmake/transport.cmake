# SPDX-License-Identifier: Apache-2.0
# Host processes over UCX's shared memory.
titan_test(transport_rma_test LABEL unit TIMEOUT 120
  SOURCES unit/core/transport/rma_test.cc
  USES core/base core/transport weightstore/client)
