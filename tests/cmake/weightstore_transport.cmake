# SPDX-License-Identifier: Apache-2.0
# Real processes, sockets and memory files.
titan_test(weightstore_transport_test LABEL unit TIMEOUT 60
  SOURCES unit/weightstore/transport/wire_test.cc unit/weightstore/transport/tcp_process_test.cc
          unit/weightstore/transport/tcp_transport_test.cc unit/weightstore/transport/pull_test.cc unit/weightstore/transport/puller_test.cc
  USES core/base core/storage core/runtime weightstore/client weightstore weightstore/reshard
       weightstore/transport)
# Host processes over UCX's shared memory.
titan_test(weightstore_rma_transport_test LABEL unit TIMEOUT 60
  SOURCES unit/weightstore/transport/rma_transport_test.cc unit/weightstore/transport/rma_puller_test.cc
  USES core/base core/transport weightstore/client weightstore weightstore/reshard weightstore/transport)
add_test(NAME long/weightstore_transport_kills COMMAND weightstore_transport_test --gtest_filter=TcpProcessTest.*)
set_tests_properties(long/weightstore_transport_kills PROPERTIES LABELS long TIMEOUT 1200 ENVIRONMENT TITAN_KILL_POINTS=300)
