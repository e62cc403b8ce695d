# SPDX-License-Identifier: Apache-2.0
titan_test(weightstore_test LABEL unit
  SOURCES unit/weightstore/client/manifest_test.cc unit/weightstore/client/panel_runs_test.cc unit/weightstore/client/weights_digest_test.cc
          unit/weightstore/store_state_test.cc unit/weightstore/store_state_adoption_test.cc unit/weightstore/store_state_property_test.cc
  USES core/base core/storage weightstore/client weightstore
  LIBS PkgConfig::XXHASH)
# Real processes and memory files.
titan_test(weightstore_store_test LABEL unit TIMEOUT 60
  SOURCES unit/weightstore/slot_memory_test.cc unit/weightstore/slot_maker_test.cc unit/weightstore/host_test.cc unit/weightstore/leader_test.cc unit/weightstore/store_test.cc unit/weightstore/store_adoption_test.cc unit/weightstore/store_process_test.cc unit/weightstore/library_test.cc
  USES core/base core/storage weightstore/client weightstore)
titan_test(weightstore_daemon_test LABEL integration TIMEOUT 120
  SOURCES integration/weightstore_daemon_test.cc integration/weightstore_checkpoints_test.cc integration/weightstore_lanes_test.cc integration/weightstore_rma_test.cc
  USES core/base core/runtime core/storage core/transport weightstore weightstore/client weightstore/transport services/rpc services/weightstore_client
  DEPENDS titan-weightstore)
titan_test(weightstore_damage_test LABEL integration TIMEOUT 120
  SOURCES integration/weightstore_damage_test.cc
  USES core/base core/runtime weightstore/client services/rpc services/weightstore_client
  DEPENDS titan-weightstore)
titan_test(weightstore_sync_test LABEL integration TIMEOUT 600
  SOURCES integration/weightstore_sync_test.cc
  USES core/base core/runtime weightstore/client services/rpc services/weightstore_client
  DEPENDS titan-weightstore)
# A daemon, a writer and readers as processes that are killed and stopped: 12 times, in the long suite 300 times.
titan_test(weightstore_recovery_test LABEL integration TIMEOUT 180 NO_MAIN
  SOURCES integration/weightstore_recovery_test.cc
  USES core/base core/runtime weightstore/client weightstore/transport services/rpc services/weightstore_client
  DEPENDS titan-weightstore)
add_test(NAME long/weightstore_recovery_300 COMMAND weightstore_recovery_test)
set_tests_properties(long/weightstore_recovery_300 PROPERTIES LABELS long TIMEOUT 3600 ENVIRONMENT TITAN_KILL_POINTS=300)
# Leader and hosts as processes of their own, killed and stopped.
titan_test(weightstore_hosts_test LABEL integration TIMEOUT 180
  SOURCES integration/weightstore_hosts_test.cc integration/weightstore_elsewhere_test.cc
  USES core/base core/runtime weightstore/client weightstore/transport services/rpc services/weightstore_client
  DEPENDS titan-weightstore)
# What titanctl exports from the store's disk while it is tidied up.
titan_test(weightstore_export_test LABEL integration TIMEOUT 60
  SOURCES integration/weightstore_export_test.cc
  USES services/models services/weightstore_client services/rpc weightstore/client core/model core/kernels core/text core/formats core/runtime
       core/base
  DEPENDS titan-weightstore)
