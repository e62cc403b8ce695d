// SPDX-License-Identifier: Apache-2.0
//
// Metrics of a process: a registry that is passed to who counts, handles that are cheap to copy and
// to update, and the text that a Prometheus server reads. Names are
// titan_<daemon>_<subject>_<unit>[_total]: base units (seconds, bytes, ratio), _total on counters
// only, labels from closed sets, never ids.
#ifndef TITAN_CORE_RUNTIME_METRICS_H_
#define TITAN_CORE_RUNTIME_METRICS_H_

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
}  // namespace prometheus

namespace titan::runtime {

using MetricLabels = std::map<std::string, std::string>;

// Handles: copyable, thread-safe, valid as long as their registry. A default-made one counts
// nothing.
class Counter {
 public:
  Counter() = default;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  void Add(double by = 1);
  double value() const;

 private:
  prometheus::Counter* counter_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  void Set(double value);
  void Add(double by);
  double value() const;

 private:
  prometheus::Gauge* gauge_ = nullptr;
};

class Histogram {
 public:
  Histogram() = default;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  void Observe(double value);

 private:
  prometheus::Histogram* histogram_ = nullptr;
};

// Bucket bounds that histograms share.
const std::vector<double>& SecondsBuckets();  // 1 ms .. 600 s
const std::vector<double>& BytesBuckets();    // 1 KiB .. 16 GiB
const std::vector<double>& CountBuckets();    // 1 .. 65536

struct MetricDescription {
  std::string name;
  std::string type;  // counter, gauge or histogram
  std::string help;
};

// Thread-safe. A name that breaks the rules, or is used with another type or help, is our own bug
// (CHECK).
class Metrics {
 public:
  Metrics();
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  Counter AddCounter(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Gauge AddGauge(std::string_view name, std::string_view help, const MetricLabels& labels = {});
  Histogram AddHistogram(std::string_view name, std::string_view help,
                         const std::vector<double>& bounds, const MetricLabels& labels = {});

  // The exposition text (version 0.0.4).
  std::string Text() const;
  // Every family, by name.
  std::vector<MetricDescription> Describe() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace titan::runtime

#endif  // TITAN_CORE_RUNTIME_METRICS_H_
