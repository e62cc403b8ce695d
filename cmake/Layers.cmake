# SPDX-License-Identifier: Apache-2.0
# The one table of the architecture: titan_layer(<module> [<modules it may use>...]), bottom up, so that
# the graph has no cycles. A module's include root holds links to itself and to what stands in its row
# (and in theirs), nothing else: an include that this table forbids does not compile.
titan_layer(core/base)
titan_layer(core/runtime       core/base)
titan_layer(core/formats       core/base)
titan_layer(core/text          core/base core/formats)
titan_layer(core/storage       core/base)
titan_layer(core/kernels       core/base)
titan_layer(core/model         core/base core/formats core/kernels)
titan_layer(core/model/torch   core/base core/kernels core/model)
titan_layer(weightstore/client core/base)
titan_layer(weightstore        core/base core/storage weightstore/client)
titan_layer(rewards            core/base)
titan_layer(generator          core/base core/kernels core/model weightstore/client)
titan_layer(trainer            core/base core/kernels core/model core/model/torch weightstore/client)
titan_layer(orchestrator       core/base core/formats core/storage)
# services/<name> is the gRPC face of the module of that name; services/rpc is what they share.
titan_layer(services/rpc       core/base core/runtime)
titan_layer(services/weightstore_client services/rpc weightstore/client core/base)
titan_layer(services/orchestrator services/rpc orchestrator core/text core/formats core/storage core/runtime core/base)
titan_layer(services/generator services/rpc services/weightstore_client generator weightstore/client core/model core/kernels core/formats core/runtime core/base)
titan_layer(services/trainer   services/rpc services/weightstore_client trainer weightstore/client core/model core/kernels core/formats core/runtime core/base)
titan_layer(services/weightstore services/rpc services/weightstore_client weightstore weightstore/client core/storage core/runtime core/base)
titan_layer(services/reward    services/rpc rewards core/runtime core/base)
titan_layer(clients/cluster    services/rpc core/runtime core/base)
titan_layer(clients/cli        clients/cluster services/rpc core/runtime core/base)
titan_layer(clients/demo       clients/cluster services/rpc core/runtime core/base)
