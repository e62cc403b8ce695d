// SPDX-License-Identifier: Apache-2.0
#include "core/model/experts.h"

#include <vector>

#include "core/kernels/linear.h"
#include "core/kernels/panels.h"
#include "core/kernels/swiglu.h"
#include "core/model/project.h"

namespace titan::model {
namespace {

using Matrix = kernels::ConstPanels;

// One of the experts' matrices and the places' outputs.
struct Role {
  int ExpertParameters::*parameter;
  Matrix ExpertPointers<Matrix>::*matrix;
  float* out;  // [places][out]
};

// The places' linears by the experts' matrices: x [places][in], the same for all roles.
void Forward(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
             const float* x, std::span<const Role> roles) {
  const kernels::ExpertPlan& plan = context.workspace.experts.plan;
  const ParameterTable& table = context.decoder.table();
  std::vector<std::vector<Matrix>> panels;
  panels.reserve(roles.size());
  std::vector<kernels::ExpertMatrix> matrices;
  for (const Role& role : roles) {
    const Parameter& parameter = table.at(p.experts[0].*role.parameter);
    const Slice held = parameter.held;
    if (held.size() == 0) continue;
    panels.emplace_back();
    for (const ExpertPointers<Matrix>& expert : w.experts) {
      panels.back().push_back(expert.*role.matrix);
    }
    matrices.push_back({panels.back(),
                        {},
                        held.size(),
                        parameter.forward_leaves,
                        role.out + held.begin,
                        parameter.rows()});
  }
  const Parameter& first = table.at(p.experts[0].*roles[0].parameter);
  kernels::ExpertLinear(context.pool, plan, x, first.columns(), matrices,
                        context.decoder.InputsOf(first));
  for (const Role& role : roles) {
    GatherOutputs(context, table.at(p.experts[0].*role.parameter), plan.places(), role.out);
  }
}

// dx [places][in] of dy [places][out]; one expert's transposed matrix at a time.
void InputGradient(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                   int ExpertParameters::*role, Matrix ExpertPointers<Matrix>::*matrix,
                   const float* dy, float* dx) {
  const kernels::ExpertPlan& plan = context.workspace.experts.plan;
  for (int64_t e = 0; e < plan.experts(); ++e) {
    const int64_t first = plan.first(e), count = plan.last(e) - first;
    if (count == 0) continue;
    const size_t i = static_cast<size_t>(e);
    const int index = p.experts[i].*role;
    const Parameter& parameter = context.decoder.table().at(index);
    const InputGradientTerm term = {index, w.experts[i].*matrix, dy + first * parameter.rows()};
    ProjectInputGradient(context, count, {&term, 1}, dx + first * parameter.columns());
  }
}

void WeightGradient(const DecoderContext& context, const LayerGradients& g,
                    const LayerParameters& p, int ExpertParameters::*role,
                    float* ExpertPointers<float*>::*matrix,
                    std::span<const kernels::RowRange> units, const float* x, const float* dy) {
  std::vector<float*> accumulators;
  for (const ExpertPointers<float*>& expert : g.experts) accumulators.push_back(expert.*matrix);
  const Parameter& parameter = context.decoder.table().at(p.experts[0].*role);
  const Slice held = parameter.held;
  if (held.size() == 0) return;
  kernels::ExpertWeightGradient(context.pool, context.workspace.experts.plan, units, x,
                                dy + held.begin, held.size(), parameter.columns(), accumulators, {},
                                context.decoder.InputsOf(parameter), parameter.rows());
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
  return {.score = kernels::RouterScore::kSoftmax,
          .experts = config.num_experts,
          .chosen = config.experts_per_token,
          .normalise = config.normalise_expert_weights};
}

void ExpertsInputs(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                   const float* normed, int64_t rows, float* logits, float* gate, float* up) {
  Workspace::Experts& scratch = context.workspace.experts;
  const Projection router = {p.router, w.router, nullptr, logits};
  Project(context, normed, rows, {&router, 1});
  Choose(context, logits, rows);
  kernels::GatherPlaces(context.pool, scratch.plan, normed, context.decoder.hidden(),
                        scratch.places_a);
  using Weights = ExpertPointers<Matrix>;
  const Role roles[] = {{&ExpertParameters::gate, &Weights::gate, gate},
                        {&ExpertParameters::up, &Weights::up, up}};
  Forward(context, w, p, scratch.places_a, roles);
}

void ExpertsOutput(const DecoderContext& context, const LayerWeights& w, const LayerParameters& p,
                   const float* gate, const float* up, float* branch) {
  Workspace& workspace = context.workspace;
  Workspace::Experts& scratch = workspace.experts;
  kernels::SwiGlu(context.pool, GateFloats(context), gate, up, workspace.activation);
  const Role down = {&ExpertParameters::down, &ExpertPointers<Matrix>::down, scratch.places_b};
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
  using Weights = ExpertPointers<Matrix>;
  using Gradients = ExpertPointers<float*>;
  float* dgate = workspace.gate;
  float* dup = workspace.up;
  float* other = workspace.hidden_c;

  // The experts' outputs again, for the weights' gradients.
  Choose(context, saved.router_logits, rows);
  kernels::SwiGlu(pool, GateFloats(context), saved.gate, saved.up, workspace.activation);
  const Role down = {&ExpertParameters::down, &Weights::down, scratch.places_b};
  Forward(context, w, p, workspace.activation, {&down, 1});
  kernels::CombinePlacesBackward(pool, scratch.plan, scratch.weights, scratch.places_b, dy, hidden,
                                 scratch.places_c, scratch.dweights);
  kernels::ChooseExpertsBackward(pool, RouterOf(context.decoder.config()), saved.router_logits,
                                 scratch.ids.data(), scratch.dweights, rows, scratch.dlogits);

  WeightGradient(context, g, p, &ExpertParameters::down, &Gradients::down, units,
                 workspace.activation, scratch.places_c);
  InputGradient(context, w, p, &ExpertParameters::down, &Weights::down, scratch.places_c, dgate);
  kernels::SwiGluBackward(pool, GateFloats(context), saved.gate, saved.up, dgate, dgate, dup);
  kernels::GatherPlaces(pool, scratch.plan, normed, hidden, scratch.places_a);
  WeightGradient(context, g, p, &ExpertParameters::gate, &Gradients::gate, units, scratch.places_a,
                 dgate);
  WeightGradient(context, g, p, &ExpertParameters::up, &Gradients::up, units, scratch.places_a,
                 dup);
  InputGradient(context, w, p, &ExpertParameters::gate, &Weights::gate, dgate, scratch.places_b);
  InputGradient(context, w, p, &ExpertParameters::up, &Weights::up, dup, scratch.places_c);
  kernels::Add(pool, scratch.plan.places() * hidden, scratch.places_b, scratch.places_c,
               scratch.places_b);
  kernels::ScatterPlaces(pool, scratch.plan, scratch.places_b, hidden, dnormed);

  const ProjectionGradient router = {p.router, scratch.dlogits, g.router, nullptr};
  ProjectWeightGradient(context, normed, units, {&router, 1});
  const InputGradientTerm of_router = {p.router, w.router, scratch.dlogits};
  ProjectInputGradient(context, rows, {&of_router, 1}, other);
  kernels::Add(pool, rows * hidden, dnormed, other, dnormed);
}

}  // namespace titan::model
