// SPDX-License-Identifier: Apache-2.0
#include "core/model/experts.h"

#include <vector>

#include "core/kernels/linear.h"
#include "core/kernels/moe_experts.h"
#include "core/kernels/panels.h"
#include "core/kernels/swiglu.h"
#include "core/model/project.h"

namespace titan::model {
namespace {

using Matrix = kernels::ConstPanels;
using ExpertWeights = ExpertPointers<const float*, Matrix>;
using ExpertGradients = ExpertPointers<float*, float*>;

// One of the matrices of an expert, its bias, and their gradients.
struct Role {
  int ExpertParameters::*parameter;
  Matrix ExpertWeights::*matrix;
  const float* ExpertWeights::*bias;
  float* ExpertGradients::*gradient;
  float* ExpertGradients::*bias_gradient;
};
constexpr Role kGate = {&ExpertParameters::gate, &ExpertWeights::gate, &ExpertWeights::gate_bias,
                        &ExpertGradients::gate, &ExpertGradients::gate_bias};
constexpr Role kUp = {&ExpertParameters::up, &ExpertWeights::up, &ExpertWeights::up_bias,
                      &ExpertGradients::up, &ExpertGradients::up_bias};
constexpr Role kDown = {&ExpertParameters::down, &ExpertWeights::down, &ExpertWeights::down_bias,
                        &ExpertGradients::down, &ExpertGradients::down_bias};

// A role and the places' outputs [places][out].
struct Product {
  const Role& role;
  float* out;
};

// The places' linears by the experts' matrices: x [places][in], the same for all products.
void Forward(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
             const float* x, std::span<const Product> products) {
  const kernels::ExpertPlan& plan = context.workspace.experts.plan;
  const ParameterTable& table = context.decoder.table();
  std::vector<std::vector<Matrix>> panels(products.size());
  std::vector<std::vector<const float*>> biases(products.size());
  std::vector<kernels::ExpertMatrix> matrices;
  for (size_t i = 0; i < products.size(); ++i) {
    const auto& [role, out] = products[i];
    const Parameter& parameter = table.at(p.experts[0].*role.parameter);
    const Slice held = parameter.held;
    if (held.size() == 0) continue;
    for (const ExpertWeights& expert : w.experts) {
      panels[i].push_back(expert.*role.matrix);
      if (expert.*role.bias != nullptr) biases[i].push_back(expert.*role.bias + held.begin);
    }
    matrices.push_back({panels[i], biases[i], held.size(), parameter.forward_leaves,
                        out + held.begin, parameter.rows()});
  }
  const Parameter& first = table.at(p.experts[0].*products[0].role.parameter);
  kernels::ExpertLinear(context.pool, plan, x, first.columns(), matrices,
                        context.decoder.InputsOf(first));
  for (const auto& [role, out] : products) {
    GatherOutputs(context, table.at(p.experts[0].*role.parameter), plan.places(), out);
  }
}

// dx [places][in] of dy [places][out]; one expert's transposed matrix at a time.
void InputGradient(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                   const Role& role, const float* dy, float* dx) {
  const kernels::ExpertPlan& plan = context.workspace.experts.plan;
  for (int64_t e = 0; e < plan.experts(); ++e) {
    const int64_t first = plan.first(e), count = plan.last(e) - first;
    if (count == 0) continue;
    const size_t i = static_cast<size_t>(e);
    const int index = p.experts[i].*role.parameter;
    const Parameter& parameter = context.decoder.table().at(index);
    const InputGradientTerm term = {index, w.experts[i].*role.matrix,
                                    dy + first * parameter.rows()};
    ProjectInputGradient(context, count, {&term, 1}, dx + first * parameter.columns());
  }
}

// Of the matrix what this rank holds, of the bias all.
void WeightGradient(const DecoderContext& context, const LayerGradients& g,
                    const LayerParameters& p, const Role& role,
                    std::span<const kernels::RowRange> units, const float* x, const float* dy) {
  const kernels::ExpertPlan& plan = context.workspace.experts.plan;
  const Parameter& parameter = context.decoder.table().at(p.experts[0].*role.parameter);
  const Slice held = parameter.held;
  std::vector<float*> accumulators, biases;
  for (const ExpertGradients& expert : g.experts) {
    accumulators.push_back(expert.*role.gradient);
    if (expert.*role.bias_gradient != nullptr) biases.push_back(expert.*role.bias_gradient);
  }
  if (held.size() > 0) {
    kernels::ExpertWeightGradient(context.pool, plan, units, x, dy + held.begin, held.size(),
                                  parameter.columns(), accumulators, {},
                                  context.decoder.InputsOf(parameter), parameter.rows());
  }
  if (biases.empty()) return;
  kernels::ExpertBiasGradient(context.pool, plan, units, dy, parameter.rows(), biases);
}

// ids, weights and plan of the workspace from logits.
void Choose(const DecoderContext& context, const float* logits, int64_t rows) {
  Workspace::Experts& scratch = context.workspace.experts;
  const kernels::RouterShape shape = RouterOf(context.decoder.config());
  kernels::ChooseExperts(context.pool, shape, logits, nullptr, rows, scratch.ids.data(),
                         scratch.weights);
  scratch.plan.Set(scratch.ids.data(), rows, shape.chosen, shape.experts);
}

int64_t GateFloats(const DecoderContext& context) {
  return context.workspace.experts.plan.places() *
         context.decoder.config().expert_intermediate_size;
}

}  // namespace

kernels::RouterShape RouterOf(const formats::ModelConfig& config) {
  return {.score = config.is_gpt_oss() ? kernels::RouterScore::kSoftmaxOfChosen
                                       : kernels::RouterScore::kSoftmax,
          .experts = config.num_experts,
          .chosen = config.experts_per_token,
          .normalise = config.normalise_expert_weights};
}

void ExpertsInputs(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                   const float* normed, int64_t rows, float* logits, float* gate, float* up) {
  Workspace::Experts& scratch = context.workspace.experts;
  const Projection router = {p.router, w.router, w.router_bias, logits};
  Project(context, normed, rows, {&router, 1});
  Choose(context, logits, rows);
  kernels::GatherPlaces(context.pool, scratch.plan, normed, context.decoder.hidden(),
                        scratch.places_a);
  const Product products[] = {{kGate, gate}, {kUp, up}};
  Forward(context, w, p, scratch.places_a, products);
}

void ExpertsOutput(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                   const float* gate, const float* up, float* branch) {
  Workspace& workspace = context.workspace;
  Workspace::Experts& scratch = workspace.experts;
  GateForward(context.decoder, context.pool, GateFloats(context), gate, up, workspace.activation);
  const Product down = {kDown, scratch.places_b};
  Forward(context, w, p, workspace.activation, {&down, 1});
  kernels::CombinePlaces(context.pool, scratch.plan, scratch.weights, scratch.places_b, nullptr,
                         context.decoder.hidden(), branch);
}

void ExpertsBackward(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                     std::span<const kernels::RowRange> units, const BlockActivations& saved,
                     const float* normed, int64_t rows, const float* dy, float* dnormed,
                     const LayerGradients& g) {
  kernels::Pool& pool = context.pool;
  Workspace& workspace = context.workspace;
  Workspace::Experts& scratch = workspace.experts;
  const int64_t hidden = context.decoder.hidden();
  float* dgate = workspace.gate;
  float* dup = workspace.up;
  float* other = workspace.hidden_c;

  // The experts' outputs again, for the weights' gradients.
  Choose(context, saved.router_logits, rows);
  GateForward(context.decoder, pool, GateFloats(context), saved.gate, saved.up,
              workspace.activation);
  const Product down = {kDown, scratch.places_b};
  Forward(context, w, p, workspace.activation, {&down, 1});
  kernels::CombinePlacesBackward(pool, scratch.plan, scratch.weights, scratch.places_b, dy, hidden,
                                 scratch.places_c, scratch.dweights);
  kernels::ChooseExpertsBackward(pool, RouterOf(context.decoder.config()), saved.router_logits,
                                 scratch.ids.data(), scratch.dweights, rows, scratch.dlogits);

  WeightGradient(context, g, p, kDown, units, workspace.activation, scratch.places_c);
  InputGradient(context, w, p, kDown, scratch.places_c, dgate);
  GateBackward(context.decoder, pool, GateFloats(context), saved.gate, saved.up, dgate, dgate, dup);
  kernels::GatherPlaces(pool, scratch.plan, normed, hidden, scratch.places_a);
  WeightGradient(context, g, p, kGate, units, scratch.places_a, dgate);
  WeightGradient(context, g, p, kUp, units, scratch.places_a, dup);
  InputGradient(context, w, p, kGate, dgate, scratch.places_b);
  InputGradient(context, w, p, kUp, dup, scratch.places_c);
  kernels::Add(pool, scratch.plan.places() * hidden, scratch.places_b, scratch.places_c,
               scratch.places_b);
  kernels::ScatterPlaces(pool, scratch.plan, scratch.places_b, hidden, dnormed);

  const ProjectionGradient router = {p.router, scratch.dlogits, g.router, g.router_bias};
  ProjectWeightGradient(context, normed, units, {&router, 1});
  const InputGradientTerm of_router = {p.router, w.router, scratch.dlogits};
  ProjectInputGradient(context, rows, {&of_router, 1}, other);
  kernels::Add(pool, rows * hidden, dnormed, other, dnormed);
}

}  // namespace titan::model
