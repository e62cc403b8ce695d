// SPDX-License-Identifier: Apache-2.0
//
// A Llama-form decoder in plain double loops, written from the formulas and sharing no code with
// the product: what gradients are compared with, by central differences. Slow; for tiny models.
// Test code.
#ifndef TITAN_TESTS_SUPPORT_DOUBLE_DECODER_H_
#define TITAN_TESTS_SUPPORT_DOUBLE_DECODER_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <numbers>
#include <string>
#include <vector>

#include "core/formats/model_config.h"

namespace titan::test {

// Row-major values by Hugging Face name.
using DoubleWeights = std::map<std::string, std::vector<double>>;

class DoubleDecoder {
 public:
  DoubleDecoder(const formats::ModelConfig& config, const DoubleWeights& weights)
      : c_(config), w_(weights) {}

  // Log-probs of target[t] at each position t of one sequence, under softmax(logits / temperature);
  // entropies likewise if asked for.
  std::vector<double> LogProbs(const std::vector<int32_t>& tokens,
                               const std::vector<int32_t>& targets, double temperature,
                               std::vector<double>* entropies = nullptr) const {
    const std::vector<double> hidden = Hidden(tokens);
    const std::string head = c_.tie_embeddings ? "model.embed_tokens.weight" : "lm_head.weight";
    std::vector<double> out;
    for (size_t t = 0; t < tokens.size(); ++t) {
      const std::vector<double> x(hidden.begin() + static_cast<int64_t>(t) * c_.hidden_size,
                                  hidden.begin() + static_cast<int64_t>(t + 1) * c_.hidden_size);
      std::vector<double> z = Linear(x, 1, head, "", c_.hidden_size, c_.vocab_size);
      double max = -1e300, sum = 0;
      for (double& v : z) v /= temperature;
      for (const double v : z) max = std::max(max, v);
      for (const double v : z) sum += std::exp(v - max);
      const double log_sum = max + std::log(sum);
      out.push_back(z[static_cast<size_t>(targets[t])] - log_sum);
      if (entropies != nullptr) {
        double entropy = 0;
        for (const double v : z) entropy -= std::exp(v - log_sum) * (v - log_sum);
        entropies->push_back(entropy);
      }
    }
    return out;
  }

 private:
  std::vector<double> Hidden(const std::vector<int32_t>& tokens) const {
    const size_t rows = tokens.size();
    const size_t hidden = static_cast<size_t>(c_.hidden_size);
    std::vector<double> x(rows * hidden);
    const std::vector<double>& table = w_.at("model.embed_tokens.weight");
    for (size_t t = 0; t < rows; ++t) {
      for (size_t i = 0; i < hidden; ++i)
        x[t * hidden + i] = table[static_cast<size_t>(tokens[t]) * hidden + i] *
                            (c_.is_gemma() ? std::sqrt(static_cast<double>(hidden)) : 1);
    }
    for (int l = 0; l < c_.num_layers; ++l) {
      const std::string p = "model.layers." + std::to_string(l) + ".";
      const std::vector<double> n1 = Norm(x, rows, p + "input_layernorm.weight");
      const int d = c_.num_heads * c_.head_dim, e = c_.num_kv_heads * c_.head_dim;
      const std::string a = p + "self_attn.";
      std::vector<double> q =
          Linear(n1, rows, a + "q_proj.weight", a + "q_proj.bias", c_.hidden_size, d);
      std::vector<double> k =
          Linear(n1, rows, a + "k_proj.weight", a + "k_proj.bias", c_.hidden_size, e);
      const std::vector<double> v =
          Linear(n1, rows, a + "v_proj.weight", a + "v_proj.bias", c_.hidden_size, e);
      if (c_.qk_norm) {
        q = Norm(q, rows * static_cast<size_t>(c_.num_heads), a + "q_norm.weight");
        k = Norm(k, rows * static_cast<size_t>(c_.num_kv_heads), a + "k_norm.weight");
      }
      const bool slides = !c_.layer_windows.empty() && c_.layer_windows[static_cast<size_t>(l)] > 0;
      Rotate(q, rows, c_.num_heads, slides && c_.is_gemma());
      Rotate(k, rows, c_.num_kv_heads, slides && c_.is_gemma());
      const size_t window = c_.layer_windows.empty()
                                ? 0
                                : static_cast<size_t>(c_.layer_windows[static_cast<size_t>(l)]);
      const auto sinks = w_.find(a + "sinks");
      const std::vector<double> attention =
          Attention(q, k, v, rows, window == 0 ? rows : window,
                    sinks == w_.end() ? nullptr : sinks->second.data());
      std::vector<double> branch =
          Linear(attention, rows, a + "o_proj.weight", a + "o_proj.bias", d, c_.hidden_size);
      if (c_.is_gemma()) branch = Norm(branch, rows, p + "post_attention_layernorm.weight");
      AddTo(x, branch);
      const std::vector<double> n2 = Norm(x, rows,
                                          p + (c_.is_gemma() ? "pre_feedforward_layernorm.weight"
                                                             : "post_attention_layernorm.weight"));
      const std::string m = p + "mlp.";
      branch = c_.is_sparse(l) ? Experts(n2, rows, m) : Mlp(n2, rows, m, c_.intermediate_size);
      if (c_.is_gemma()) branch = Norm(branch, rows, p + "post_feedforward_layernorm.weight");
      AddTo(x, branch);
    }
    return Norm(x, rows, "model.norm.weight");
  }

  std::vector<double> Mlp(const std::vector<double>& n, size_t rows, const std::string& m,
                          int width) const {
    std::vector<double> gate =
        Linear(n, rows, m + "gate_proj.weight", m + "gate_proj.bias", c_.hidden_size, width);
    const std::vector<double> up =
        Linear(n, rows, m + "up_proj.weight", m + "up_proj.bias", c_.hidden_size, width);
    for (size_t i = 0; i < gate.size(); ++i) {
      if (c_.is_gpt_oss()) {
        const double g = std::min(gate[i], 7.0), u = std::clamp(up[i], -7.0, 7.0);
        gate[i] = (u + 1) * g / (1 + std::exp(-1.702 * g));
        continue;
      }
      const double g = gate[i], root = std::sqrt(2 / std::numbers::pi);
      const double tanh = std::tanh(root * (g + 0.044715 * g * g * g));
      gate[i] = (c_.is_gemma() ? 0.5 * g * (1 + tanh) : g / (1 + std::exp(-g))) * up[i];
    }
    return Linear(gate, rows, m + "down_proj.weight", m + "down_proj.bias", width, c_.hidden_size);
  }

  // Softmax over all experts, the best of each row, their weights normalised if the model says so,
  // which is a softmax over the best.
  std::vector<double> Experts(const std::vector<double>& n, size_t rows,
                              const std::string& m) const {
    const size_t experts = static_cast<size_t>(c_.num_experts),
                 hidden = static_cast<size_t>(c_.hidden_size),
                 chosen = static_cast<size_t>(c_.experts_per_token);
    std::vector<double> z = Linear(n, rows, m + (c_.is_gpt_oss() ? "router.weight" : "gate.weight"),
                                   m + "router.bias", c_.hidden_size, c_.num_experts);
    std::vector<double> out(rows * hidden, 0.0);
    for (size_t t = 0; t < rows; ++t) {
      double sum = 0, kept = 0;
      for (size_t e = 0; e < experts; ++e) sum += z[t * experts + e] = std::exp(z[t * experts + e]);
      std::vector<double> p(z.begin() + static_cast<int64_t>(t * experts),
                            z.begin() + static_cast<int64_t>((t + 1) * experts));
      std::vector<double> sorted = p;
      std::sort(sorted.rbegin(), sorted.rend());
      for (double& value : p) value = value < sorted[chosen - 1] ? 0 : value / sum;
      for (const double value : p) kept += value;
      const std::vector<double> row(n.begin() + static_cast<int64_t>(t * hidden),
                                    n.begin() + static_cast<int64_t>((t + 1) * hidden));
      for (size_t e = 0; e < experts; ++e) {
        if (p[e] == 0) continue;
        const std::vector<double> y =
            Mlp(row, 1, m + "experts." + std::to_string(e) + ".", c_.expert_intermediate_size);
        const double weight = c_.normalise_expert_weights ? p[e] / kept : p[e];
        for (size_t i = 0; i < hidden; ++i) out[t * hidden + i] += weight * y[i];
      }
    }
    return out;
  }

  std::vector<double> Linear(const std::vector<double>& x, size_t rows, const std::string& weight,
                             const std::string& bias, int in, int out) const {
    const std::vector<double>& w = w_.at(weight);
    const auto b = w_.find(bias);
    std::vector<double> y(rows * static_cast<size_t>(out));
    for (size_t t = 0; t < rows; ++t) {
      for (int n = 0; n < out; ++n) {
        double sum = b == w_.end() ? 0 : b->second[static_cast<size_t>(n)];
        for (int k = 0; k < in; ++k) {
          sum += x[t * static_cast<size_t>(in) + static_cast<size_t>(k)] *
                 w[static_cast<size_t>(n * in + k)];
        }
        y[t * static_cast<size_t>(out) + static_cast<size_t>(n)] = sum;
      }
    }
    return y;
  }

  std::vector<double> Norm(const std::vector<double>& x, size_t rows,
                           const std::string& gain) const {
    const std::vector<double>& g = w_.at(gain);
    const size_t hidden = g.size();
    std::vector<double> y(x.size());
    for (size_t t = 0; t < rows; ++t) {
      double squares = 0;
      for (size_t i = 0; i < hidden; ++i) squares += x[t * hidden + i] * x[t * hidden + i];
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(hidden) + c_.rms_norm_eps);
      const double one = c_.is_gemma() ? 1 : 0;
      for (size_t i = 0; i < hidden; ++i) {
        y[t * hidden + i] = x[t * hidden + i] * inverse * (one + g[i]);
      }
    }
    return y;
  }

  // local: of Gemma's sliding layers.
  double Frequency(int i, bool local) const {
    const double theta = local ? c_.local_rope_theta : c_.rope_theta;
    const double f = static_cast<float>(
        1.0f / static_cast<float>(std::pow(theta, 2.0 * i / static_cast<double>(c_.head_dim))));
    if (local) return f;
    const formats::RopeScaling& s = c_.rope_scaling;
    if (s.kind == formats::RopeScaling::Kind::kNone) return f;
    if (s.kind == formats::RopeScaling::Kind::kLinear) return f / s.factor;
    if (s.kind == formats::RopeScaling::Kind::kYarn) return Yarn(f, i);
    const double wavelength = 2 * std::numbers::pi / f;
    const double context = s.original_max_position_embeddings;
    if (wavelength < context / s.high_freq_factor) return f;
    if (wavelength > context / s.low_freq_factor) return f / s.factor;
    const double t =
        (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    return (1 - t) * f / s.factor + t * f;
  }

  double Yarn(double f, int i) const {
    const formats::RopeScaling& s = c_.rope_scaling;
    const auto correction = [&](double beta) {
      const double turns = s.original_max_position_embeddings / (2 * std::numbers::pi * beta);
      return c_.head_dim * std::log(turns) / (2 * std::log(c_.rope_theta));
    };
    double low = correction(s.beta_fast), high = correction(s.beta_slow);
    if (s.truncate) low = std::floor(low), high = std::ceil(high);
    low = std::max(low, 0.0), high = std::min(high, c_.head_dim - 1.0);
    const double ramp = std::clamp((i - low) / (high - low), 0.0, 1.0);
    return ramp * f / s.factor + (1 - ramp) * f;
  }

  // Of cosine and sine.
  double RotaryMagnitude() const {
    const formats::RopeScaling& s = c_.rope_scaling;
    if (s.kind != formats::RopeScaling::Kind::kYarn) return 1;
    return s.attention_factor != 0 ? s.attention_factor : 0.1 * std::log(s.factor) + 1;
  }

  void Rotate(std::vector<double>& x, size_t rows, int heads, bool local) const {
    const int half = c_.head_dim / 2;
    for (size_t t = 0; t < rows; ++t) {
      for (int h = 0; h < heads; ++h) {
        double* head = x.data() + (t * static_cast<size_t>(heads) + static_cast<size_t>(h)) *
                                      static_cast<size_t>(c_.head_dim);
        for (int i = 0; i < half; ++i) {
          const double angle = static_cast<double>(t) * Frequency(i, local);
          const double a = head[i], b = head[i + half];
          const double m = RotaryMagnitude();
          head[i] = m * (a * std::cos(angle) - b * std::sin(angle));
          head[i + half] = m * (b * std::cos(angle) + a * std::sin(angle));
        }
      }
    }
  }

  std::vector<double> Attention(const std::vector<double>& q, const std::vector<double>& k,
                                const std::vector<double>& v, size_t rows, size_t window,
                                const double* sinks) const {
    const size_t dim = static_cast<size_t>(c_.head_dim);
    const size_t heads = static_cast<size_t>(c_.num_heads),
                 kv_heads = static_cast<size_t>(c_.num_kv_heads);
    std::vector<double> out(q.size());
    for (size_t t = 0; t < rows; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        const size_t kv = h / (heads / kv_heads);
        const size_t lowest = t + 1 > window ? t + 1 - window : 0;
        std::vector<double> p(t + 1, -1e300);
        double max = -1e300, sum = 0;
        for (size_t j = lowest; j <= t; ++j) {
          double s = 0;
          for (size_t i = 0; i < dim; ++i) {
            s += q[(t * heads + h) * dim + i] * k[(j * kv_heads + kv) * dim + i];
          }
          p[j] = s / std::sqrt(c_.is_gemma() ? c_.query_pre_attn_scalar : static_cast<double>(dim));
          max = std::max(max, p[j]);
        }
        if (sinks != nullptr) sum += std::exp(sinks[h] - max);
        for (double& value : p) sum += value = std::exp(value - max);
        for (size_t j = 0; j <= t; ++j) {
          for (size_t i = 0; i < dim; ++i) {
            out[(t * heads + h) * dim + i] += p[j] / sum * v[(j * kv_heads + kv) * dim + i];
          }
        }
      }
    }
    return out;
  }

  static void AddTo(std::vector<double>& x, const std::vector<double>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }

  const formats::ModelConfig& c_;
  const DoubleWeights& w_;
};

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_DOUBLE_DECODER_H_
