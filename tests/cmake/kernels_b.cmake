# SPDX-License-Identifier: Apache-2.0
titan_test(kernels_ops_test LABEL unit TIMEOUT 120
  SOURCES unit/core/kernels/attention_prefix_test.cc unit/core/kernels/attention_test.cc
    unit/core/kernels/attention_window_test.cc unit/core/kernels/elementary_test.cc
    unit/core/kernels/ops_test.cc unit/core/kernels/sampling_test.cc unit/core/kernels/units_test.cc
  USES core/kernels)
titan_test(kernels_blocks_test LABEL unit TIMEOUT 120
  SOURCES unit/core/kernels/gated_delta_test.cc unit/core/kernels/latent_attention_test.cc
    unit/core/kernels/moe_test.cc
  USES core/kernels)
# The bits and the errors of every one-argument function over all 2^32 inputs.
add_test(NAME unit/kernels_ops_all_inputs
  COMMAND kernels_ops_test --gtest_filter=ElementaryTest.Vectors*:ElementaryTest.Errors* --all_inputs)
set_tests_properties(unit/kernels_ops_all_inputs PROPERTIES LABELS long TIMEOUT 3600)

titan_test(kernels_golden_test LABEL golden SOURCES golden_runner/kernels_golden_test.cc
  USES core/kernels LIBS nlohmann_json::nlohmann_json)
set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES
  optim/adamw.json optim/clip_grad_norm.json loss/logprob_entropy.json sampling/greedy.json)

# Every operation, forward and backward, against float64 autograd.
titan_test(op_gradients_golden_test LABEL golden
  SOURCES golden_runner/op_gradients_golden_test.cc
    golden_runner/op_gradients_mixers_golden_test.cc
  USES core/kernels LIBS nlohmann_json::nlohmann_json)
set_property(GLOBAL APPEND PROPERTY TITAN_GOLDEN_FILES
  op_gradients/attention.json op_gradients/elementwise.json op_gradients/experts.json
  op_gradients/linear.json op_gradients/recurrent_latent.json)
