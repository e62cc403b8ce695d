# SPDX-License-Identifier: Apache-2.0
titan_test(generator_test LABEL parity ALSO_UNIT
  SOURCES unit/generator/engine_test.cc unit/generator/engine_thread_test.cc unit/generator/page_pool_test.cc
          support/small_model.cc
  USES generator core/model core/formats core/kernels)
titan_test(model_host_test LABEL unit TIMEOUT 60
  SOURCES unit/services/generator/model_host_test.cc support/small_model.cc
  USES services/generator services/contract services/rpc generator weightstore weightstore/client core/model core/kernels
       core/formats core/storage core/runtime core/base)
# titan-generator and titan-weightstore, which is killed.
titan_test(generator_store_test LABEL integration TIMEOUT 120
  SOURCES integration/generator_store_test.cc support/small_model.cc
  USES services/contract services/rpc services/weightstore_client weightstore/client core/model core/kernels core/formats core/runtime
       core/base
  DEPENDS titan-generator titan-weightstore)
