// SPDX-License-Identifier: Apache-2.0
#include "core/runtime/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <algorithm>
#include <mutex>

#include "core/base/check.h"

namespace titan::runtime {
namespace {

bool NameIsValid(std::string_view name, bool counter) {
  if (!name.starts_with("titan_")) return false;
  if (name.ends_with("_total") != counter) return false;
  return std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
  });
}

}  // namespace

void Counter::Add(double by) {
  if (counter_ != nullptr) counter_->Increment(by);
}
double Counter::value() const { return counter_ == nullptr ? 0 : counter_->Value(); }

void Gauge::Set(double value) {
  if (gauge_ != nullptr) gauge_->Set(value);
}
void Gauge::Add(double by) {
  if (gauge_ != nullptr) gauge_->Increment(by);
}
double Gauge::value() const { return gauge_ == nullptr ? 0 : gauge_->Value(); }

void Histogram::Observe(double value) {
  if (histogram_ != nullptr) histogram_->Observe(value);
}

const std::vector<double>& SecondsBuckets() {
  static const auto* bounds =
      new std::vector<double>{0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
                              1,     2.5,    5,     10,   30,    60,   120, 300,  600};
  return *bounds;
}

const std::vector<double>& BytesBuckets() {
  static const auto* bounds = [] {
    auto* made = new std::vector<double>;
    for (double b = 1024; b <= 17179869184.0; b *= 16) made->push_back(b);
    return made;
  }();
  return *bounds;
}

const std::vector<double>& CountBuckets() {
  static const auto* bounds = [] {
    auto* made = new std::vector<double>;
    for (double b = 1; b <= 65536; b *= 2) made->push_back(b);
    return made;
  }();
  return *bounds;
}

struct Metrics::Impl {
  mutable std::mutex mutex;
  prometheus::Registry registry;
  std::map<std::string, MetricDescription> families;

  void Declare(std::string_view name, std::string_view help, const char* type) {
    TITAN_CHECK(NameIsValid(name, std::string_view(type) == "counter"));
    std::lock_guard lock(mutex);
    auto [at, inserted] = families.try_emplace(
        std::string(name), MetricDescription{std::string(name), type, std::string(help)});
    TITAN_CHECK(inserted || (at->second.type == type && at->second.help == help));
  }
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

Counter Metrics::AddCounter(std::string_view name, std::string_view help,
                            const MetricLabels& labels) {
  impl_->Declare(name, help, "counter");
  auto& family = prometheus::BuildCounter()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(impl_->registry);
  return Counter(&family.Add(labels));
}

Gauge Metrics::AddGauge(std::string_view name, std::string_view help, const MetricLabels& labels) {
  impl_->Declare(name, help, "gauge");
  auto& family = prometheus::BuildGauge()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(impl_->registry);
  return Gauge(&family.Add(labels));
}

Histogram Metrics::AddHistogram(std::string_view name, std::string_view help,
                                const std::vector<double>& bounds, const MetricLabels& labels) {
  impl_->Declare(name, help, "histogram");
  auto& family = prometheus::BuildHistogram()
                     .Name(std::string(name))
                     .Help(std::string(help))
                     .Register(impl_->registry);
  return Histogram(&family.Add(labels, bounds));
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(impl_->registry.Collect());
}

std::vector<MetricDescription> Metrics::Describe() const {
  std::lock_guard lock(impl_->mutex);
  std::vector<MetricDescription> all;
  for (const auto& [name, family] : impl_->families) all.push_back(family);
  return all;
}

}  // namespace titan::runtime
