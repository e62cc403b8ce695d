// SPDX-License-Identifier: Apache-2.0
//
// A Llama-form decoder in plain double loops, written from the formulas and sharing no code with
// the product: what gradients are compared with, by central differences. Slow; for tiny models.
// Test code.
#ifndef TITAN_TESTS_SUPPORT_DOUBLE_DECODER_H_
#define TITAN_TESTS_SUPPORT_DOUBLE_DECODER_H_

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
        x[t * hidden + i] = table[static_cast<size_t>(tokens[t]) * hidden + i];
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
      Rotate(q, rows, c_.num_heads);
      Rotate(k, rows, c_.num_kv_heads);
      const std::vector<double> attention = Attention(q, k, v, rows);
      AddTo(x, Linear(attention, rows, a + "o_proj.weight", a + "o_proj.bias", d, c_.hidden_size));
      const std::vector<double> n2 = Norm(x, rows, p + "post_attention_layernorm.weight");
      const std::string m = p + "mlp.";
      const int f = c_.intermediate_size;
      std::vector<double> gate =
          Linear(n2, rows, m + "gate_proj.weight", m + "gate_proj.bias", c_.hidden_size, f);
      const std::vector<double> up =
          Linear(n2, rows, m + "up_proj.weight", m + "up_proj.bias", c_.hidden_size, f);
      for (size_t i = 0; i < gate.size(); ++i) gate[i] = gate[i] / (1 + std::exp(-gate[i])) * up[i];
      AddTo(x, Linear(gate, rows, m + "down_proj.weight", m + "down_proj.bias", f, c_.hidden_size));
    }
    return Norm(x, rows, "model.norm.weight");
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
      for (size_t i = 0; i < hidden; ++i) y[t * hidden + i] = x[t * hidden + i] * inverse * g[i];
    }
    return y;
  }

  double Frequency(int i) const {
    const double f =
        static_cast<float>(1.0f / static_cast<float>(std::pow(
                                      c_.rope_theta, 2.0 * i / static_cast<double>(c_.head_dim))));
    const formats::RopeScaling& s = c_.rope_scaling;
    if (s.kind == formats::RopeScaling::Kind::kNone) return f;
    const double wavelength = 2 * std::numbers::pi / f;
    const double context = s.original_max_position_embeddings;
    if (wavelength < context / s.high_freq_factor) return f;
    if (wavelength > context / s.low_freq_factor) return f / s.factor;
    const double t =
        (context / wavelength - s.low_freq_factor) / (s.high_freq_factor - s.low_freq_factor);
    return (1 - t) * f / s.factor + t * f;
  }

  void Rotate(std::vector<double>& x, size_t rows, int heads) const {
    const int half = c_.head_dim / 2;
    for (size_t t = 0; t < rows; ++t) {
      for (int h = 0; h < heads; ++h) {
        double* head = x.data() + (t * static_cast<size_t>(heads) + static_cast<size_t>(h)) *
                                      static_cast<size_t>(c_.head_dim);
        for (int i = 0; i < half; ++i) {
          const double angle = static_cast<double>(t) * Frequency(i);
          const double a = head[i], b = head[i + half];
          head[i] = a * std::cos(angle) - b * std::sin(angle);
          head[i + half] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    }
  }

  std::vector<double> Attention(const std::vector<double>& q, const std::vector<double>& k,
                                const std::vector<double>& v, size_t rows) const {
    const size_t dim = static_cast<size_t>(c_.head_dim);
    const size_t heads = static_cast<size_t>(c_.num_heads),
                 kv_heads = static_cast<size_t>(c_.num_kv_heads);
    std::vector<double> out(q.size());
    for (size_t t = 0; t < rows; ++t) {
      for (size_t h = 0; h < heads; ++h) {
        const size_t kv = h / (heads / kv_heads);
        std::vector<double> p(t + 1);
        double max = -1e300, sum = 0;
        for (size_t j = 0; j <= t; ++j) {
          double s = 0;
          for (size_t i = 0; i < dim; ++i) {
            s += q[(t * heads + h) * dim + i] * k[(j * kv_heads + kv) * dim + i];
          }
          p[j] = s / std::sqrt(static_cast<double>(dim));
          max = std::max(max, p[j]);
        }
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
