// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/report.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <set>

#include "clients/cli/rollout_view.h"
#include "clients/cli/svg_chart.h"
#include "clients/cluster/job_client.h"
#include "clients/cluster/progress.h"
#include "clients/cluster/terminal.h"
#include "services/rpc/config.h"

namespace titan::cli {
namespace {

using namespace orchestrator::v1;  // NOLINT: every name here is of the orchestrator's protocol

constexpr size_t kMaxGroups = 6;   // of each side
constexpr int kMaxSamples = 4;     // of each group
constexpr size_t kMaxText = 4000;  // bytes of one prompt or reply

constexpr char kStyle[] = R"(
:root{color-scheme:light dark;--bg:#fff;--fg:#1c2330;--dim:#5d6778;--line:#dde2ea;--card:#f6f8fb;
--good:#1a7f37;--bad:#c62828;--s0:#2563c9;--s1:#d9730d;--s2:#1a8a5a;--s3:#9b3fb5;--s4:#c2334d;--s5:#0e8a9e;--s6:#8a6d1b;--s7:#6b7280}
@media (prefers-color-scheme:dark){:root{--bg:#12161d;--fg:#e6eaf1;--dim:#9aa5b5;--line:#2b3340;--card:#1a202a;
--good:#4cc38a;--bad:#ff7b72;--s0:#6ea8fe;--s1:#f0a35e;--s2:#5fd3a0;--s3:#d39af0;--s4:#ff8fa3;--s5:#67d3e3;--s6:#e0c15c;--s7:#a7b0bd}}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1240px;margin:0 auto;padding:24px 16px 48px}
h1{font-size:26px;line-height:1.25;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:18px;margin:36px 0 12px}
.sub{color:var(--dim);margin:0;overflow-wrap:anywhere}
.good{color:var(--good)}.bad{color:var(--bad)}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(165px,1fr));gap:12px;margin:20px 0 0}
.tile{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 14px}
.tile b{display:block;font-size:19px;font-weight:600;line-height:1.35;overflow-wrap:anywhere}
.tile span{display:block;color:var(--dim);font-size:13px;line-height:1.35}
.charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,340px),1fr));gap:16px}
figure{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px;display:flex;flex-direction:column}
figcaption{font-weight:600;margin-bottom:4px}
svg{display:block;width:100%;height:auto;margin-top:auto}
svg text{font-size:10.5px;fill:var(--dim)}
.grid{stroke:var(--line);stroke-width:1}
.legend{margin:0 0 4px;font-size:12.5px;color:var(--dim);display:flex;flex-wrap:wrap;gap:2px 12px}
.legend i{display:inline-block;width:10px;height:10px;border-radius:2px;margin-right:5px}
.none{color:var(--dim);margin:24px 0}
.sides{display:grid;grid-template-columns:1fr 1fr;gap:12px 16px}
.sides h3{font-size:16px;margin:0}
.group{min-width:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px}
.group .sub{font-size:13px}
.alone{grid-template-columns:1fr}
.group h4{margin:0 0 6px;font-size:13px;font-weight:600;color:var(--dim);overflow-wrap:anywhere}
pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere;font:13px/1.45 ui-monospace,SFMono-Regular,Menlo,Consolas,monospace}
.prompt{color:var(--dim);border-left:3px solid var(--line);padding-left:8px;margin-bottom:8px}
.reply{border-top:1px solid var(--line);padding-top:6px;margin-top:6px}
.reply em{font-style:normal;font-size:12.5px;color:var(--dim);display:block}
.reply em b{color:var(--fg)}
.only{display:none}
.scroll{overflow-x:auto;border:1px solid var(--line);border-radius:8px}
table{border-collapse:collapse;width:100%;font-size:13px;font-variant-numeric:tabular-nums}
th,td{padding:5px 10px;text-align:right;white-space:nowrap;border-bottom:1px solid var(--line)}
tr:last-child td{border-bottom:0}
th{color:var(--dim);font-weight:600;background:var(--card)}
details{margin-top:12px}summary{cursor:pointer;font-weight:600;padding:6px 0}
footer{margin-top:40px;color:var(--dim);font-size:13px}
@media (max-width:700px){main{padding:16px 12px 40px}h1{font-size:21px}.tiles{grid-template-columns:1fr 1fr;gap:8px}
.tile{padding:8px 10px}.tile b{font-size:16px}.sides{grid-template-columns:1fr}.sides h3{display:none}.only{display:inline}}
)";

std::string Time(int64_t unix_ms) {
  if (unix_ms <= 0) return "-";
  return fmt::format("{:%Y-%m-%d %H:%M:%S} UTC",
                     fmt::gmtime(static_cast<std::time_t>(unix_ms / 1000)));
}

std::string Cut(const std::string& text) {
  if (text.size() <= kMaxText) return text;
  size_t end = kMaxText;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end) + " ...";
}

ChartSeries Series(const std::string& name, const std::vector<StepReport>& steps,
                   const std::function<double(const StepReport&)>& value) {
  ChartSeries series{name, {}, -1};
  for (const StepReport& step : steps) {
    series.points.emplace_back(static_cast<double>(step.step()), value(step));
  }
  return series;
}

std::vector<EvaluationReport> Made(const ReportInput& input) {
  std::vector<EvaluationReport> made;
  for (const EvaluationReport& report : input.evaluations) {
    if (report.skipped_reason().empty()) made.push_back(report);
  }
  return made;
}

std::string Tile(const std::string& value, const std::string& name, const char* css = "") {
  return fmt::format("<div class=\"tile\"><b class=\"{}\">{}</b><span>{}</span></div>", css,
                     EscapeHtml(value), EscapeHtml(name));
}

std::string Tiles(const ReportInput& input, const ParityTotals& parity) {
  const Job& job = input.job;
  const auto made = Made(input);
  std::string html = "<div class=\"tiles\">";
  html += Tile(fmt::format("{} / {}", job.steps_done(), job.steps_total()), "steps done");
  if (!made.empty()) {
    html += Tile(
        fmt::format("{:.3f} \xe2\x86\x92 {:.3f}", made.front().accuracy(), made.back().accuracy()),
        fmt::format("accuracy, version {} and {}", made.front().version(), made.back().version()));
  }
  if (!input.steps.empty()) {
    html += Tile(fmt::format("{:.3f} \xe2\x86\x92 {:.3f}", input.steps.front().reward_mean(),
                             input.steps.back().reward_mean()),
                 "reward, first and last step");
    double wall = 0;
    uint64_t tokens = 0;
    for (const StepReport& step : input.steps) {
      wall += step.phases().wall();
      tokens += step.tokens_generated();
    }
    html += Tile(cluster::FormatSeconds(wall / static_cast<double>(input.steps.size())),
                 "mean time of a step");
    if (wall > 0) {
      html += Tile(fmt::format("{:.0f}", static_cast<double>(tokens) / wall), "tokens a second");
    }
  }
  const bool checked = parity.tokens_compared() > 0;
  const bool equal = parity.tokens_differing() == 0 && parity.logprob_difference_max() == 0;
  html += Tile(
      !checked ? "not checked"
               : fmt::format("{} of {}", parity.tokens_differing(), parity.tokens_compared()),
      checked
          ? fmt::format("tokens whose log-prob differs (max {:g})", parity.logprob_difference_max())
          : std::string("log-prob parity"),
      !checked ? ""
      : equal  ? "good"
               : "bad");
  return html + "</div>\n";
}

std::string Charts(const ReportInput& input) {
  const auto& steps = input.steps;
  std::string html = "<h2>Curves</h2><div class=\"charts\">\n";
  html += Chart({Series("reward", steps, [](const StepReport& s) { return s.reward_mean(); })},
                {.title = "Mean reward of a step"});
  ChartSeries accuracy{"accuracy", {}, -1};
  for (const EvaluationReport& report : Made(input)) {
    accuracy.points.emplace_back(static_cast<double>(report.version()), report.accuracy());
  }
  html += Chart({accuracy}, {.title = "Greedy accuracy on held-out questions",
                             .x_name = "version",
                             .y_min = 0.0,
                             .y_max = 1.0});
  ChartSeries equal = Series("equal", steps, [](const StepReport& s) {
    return static_cast<double>(s.parity().tokens_compared() - s.parity().tokens_differing());
  });
  ChartSeries differing = Series("differing", steps, [](const StepReport& s) {
    return static_cast<double>(s.parity().tokens_differing());
  });
  equal.color = 2;
  differing.color = 4;
  html += Chart(
      {equal, differing},
      {.title = "Parity: tokens compared with the rollout", .stacked_bars = true, .whole_y = true});
  html += Chart(
      {Series("tokens", steps, [](const StepReport& s) { return s.completion_tokens_mean(); })},
      {.title = "Mean completion length, tokens"});
  html += Chart({Series("age", steps, [](const StepReport& s) { return double(s.age()); })},
                {.title = "Policy age, steps", .whole_y = true});
  html += Chart(
      {Series("wait", steps, [](const StepReport& s) { return s.phases().wait_for_samples(); }),
       Series("parity forward", steps,
              [](const StepReport& s) { return s.phases().parity_forward(); }),
       Series("forward", steps, [](const StepReport& s) { return s.phases().forward(); }),
       Series("backward", steps, [](const StepReport& s) { return s.phases().backward(); }),
       Series("optimizer", steps, [](const StepReport& s) { return s.phases().optimizer(); }),
       Series("publish", steps, [](const StepReport& s) { return s.phases().publish(); })},
      {.title = "Trainer's phases, seconds", .unit = "s", .stacked_bars = true});
  html +=
      Chart({Series("generate", steps, [](const StepReport& s) { return s.phases().generate(); }),
             Series("score", steps, [](const StepReport& s) { return s.phases().score(); }),
             Series("whole step", steps, [](const StepReport& s) { return s.phases().wall(); })},
            {.title = "Generation beside training, seconds", .unit = "s"});
  html += Chart(
      {Series("trained", steps, [](const StepReport& s) { return double(s.groups_trained()); }),
       Series("not trainable", steps,
              [](const StepReport& s) { return double(s.groups_untrainable()); })},
      {.title = "Groups of a step", .stacked_bars = true, .whole_y = true});
  html += Chart({Series("norm", steps, [](const StepReport& s) { return s.gradient_norm(); })},
                {.title = "Gradient norm"});
  return html + "</div>\n";
}

std::string GroupHtml(const ListRolloutsResponse& group) {
  const std::string fate = !group.closed()     ? "open"
                           : group.trainable() ? "trained"
                                               : "not trained: " + group.reason();
  // A narrow page shows both sides in one column: there each group says its step.
  std::string html = fmt::format(
      "<div class=\"group\"><h4><span class=\"only\">Step {} \xc2\xb7 </span>{}{} \xc2\xb7 version "
      "{} \xc2\xb7 {}</h4>",
      group.step(), group.data_id().empty() ? "" : EscapeHtml(group.data_id()) + " \xc2\xb7 ",
      FormatGroupId(group.group_id()), group.version(), EscapeHtml(fate));
  if (!group.prompt().empty()) {
    html += "<pre class=\"prompt\">" + EscapeHtml(Cut(group.prompt())) + "</pre>";
  }
  if (!group.answer().empty()) {
    html += "<div class=\"sub\">answer: " + EscapeHtml(Cut(group.answer())) + "</div>";
  }
  for (int i = 0; i < std::min(kMaxSamples, group.samples_size()); ++i) {
    const RolloutSample& sample = group.samples(i);
    html += fmt::format(
        "<div class=\"reply\"><em><b>reward {}</b> \xc2\xb7 {} tokens</em><pre>{}</pre></div>",
        sample.scored() ? fmt::format("{:g}", sample.reward()) : std::string("-"),
        sample.num_tokens(), EscapeHtml(Cut(sample.text())));
  }
  if (group.samples_size() > kMaxSamples) {
    html += fmt::format("<div class=\"sub\">and {} more</div>", group.samples_size() - kMaxSamples);
  }
  return html + "</div>\n";
}

// Questions that both sides have come first, in the same order.
std::vector<ListRolloutsResponse> Arrange(const std::vector<ListRolloutsResponse>& groups,
                                          const std::vector<ListRolloutsResponse>& others) {
  std::set<std::string> known;
  for (const auto& group : others) known.insert(group.data_id());
  std::vector<ListRolloutsResponse> arranged = groups;
  std::stable_sort(arranged.begin(), arranged.end(), [&](const auto& a, const auto& b) {
    const bool both_a = known.contains(a.data_id()), both_b = known.contains(b.data_id());
    if (both_a != both_b) return both_a;
    return both_a && a.data_id() < b.data_id();
  });
  if (arranged.size() > kMaxGroups) arranged.resize(kMaxGroups);
  return arranged;
}

// Row by row, so that what stands side by side starts at one height.
std::string Samples(const ReportInput& input) {
  if (input.first.empty()) return "";
  const auto left = Arrange(input.first, input.last), right = Arrange(input.last, input.first);
  std::string html = fmt::format(
      "<h2>Samples from the start and the end</h2><div class=\"sides{}\">\n<h3>Step {}</h3>",
      right.empty() ? " alone" : "", left.front().step());
  if (!right.empty()) html += fmt::format("<h3>Step {}</h3>", right.front().step());
  html += "\n";
  for (size_t i = 0; i < std::max(left.size(), right.size()); ++i) {
    html += i < left.size() ? GroupHtml(left[i]) : "<div></div>\n";
    if (!right.empty()) html += i < right.size() ? GroupHtml(right[i]) : "<div></div>\n";
  }
  return html + "</div>\n";
}

std::string StepTable(const std::vector<StepReport>& steps) {
  if (steps.empty()) return "";
  std::string html =
      "<details><summary>Every step</summary><div class=\"scroll\"><table><tr><th>step</th>"
      "<th>reward</th><th>groups</th><th>tokens</th><th>length</th><th>loss</th><th>gradient norm"
      "</th><th>clip</th><th>ratio max</th><th>compared</th><th>differing</th><th>age</th>"
      "<th>seconds</th><th>weights digest</th></tr>";
  for (const StepReport& s : steps) {
    html += fmt::format(
        "<tr><td>{}</td><td>{:.4f}</td><td>{}/{}</td><td>{}</td><td>{:.1f}</td><td>{:.4g}</td>"
        "<td>{:.4g}</td><td>{:.4f}</td><td>{:.4f}</td><td>{}</td><td>{}</td><td>{}</td>"
        "<td>{:.1f}</td><td>{}</td></tr>",
        s.step(), s.reward_mean(), s.groups_trained(), s.groups_trained() + s.groups_untrainable(),
        s.tokens_generated(), s.completion_tokens_mean(), s.loss(), s.gradient_norm(),
        s.clip_fraction(), s.ratio_max(), s.parity().tokens_compared(),
        s.parity().tokens_differing(), s.age(), s.phases().wall(), EscapeHtml(s.weights_digest()));
  }
  return html + "</table></div></details>\n";
}

}  // namespace

std::string ReportHtml(const ReportInput& input) {
  const Job& job = input.job;
  const std::string title = job.name().empty() ? job.job_id() : job.name();
  ParityTotals parity;
  for (const StepReport& step : input.steps) {
    parity.set_tokens_compared(parity.tokens_compared() + step.parity().tokens_compared());
    parity.set_tokens_differing(parity.tokens_differing() + step.parity().tokens_differing());
    const double difference = step.parity().logprob_difference_max();
    if (std::isnan(difference) || difference > parity.logprob_difference_max()) {
      parity.set_logprob_difference_max(difference);
    }
  }
  const std::string state = cluster::NameOf(job.state());
  const char* css = job.state() == JOB_STATE_FAILED      ? "bad"
                    : job.state() == JOB_STATE_SUCCEEDED ? "good"
                                                         : "";
  std::string html =
      "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">"
      "<meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">"
      "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
      "style-src 'unsafe-inline'\"><title>" +
      EscapeHtml(title) + "</title><style>" + kStyle + "</style></head><body><main>\n";
  html += "<h1>" + EscapeHtml(title) + "</h1>\n";
  html += fmt::format(
      "<p class=\"sub\">{} \xc2\xb7 <b class=\"{}\">{}</b>{} \xc2\xb7 seed {} \xc2\xb7 {}</p>\n",
      EscapeHtml(job.job_id()), css, state,
      job.reason().empty() ? "" : " (" + EscapeHtml(job.reason()) + ")", job.spec().seed(),
      EscapeHtml(job.spec().model().id().empty() ? job.spec().model().path()
                                                 : "model " + job.spec().model().id()));
  html += fmt::format("<p class=\"sub\">submitted {}{}</p>\n", Time(job.submitted_unix_ms()),
                      job.ended_unix_ms() > 0 ? ", ended " + Time(job.ended_unix_ms()) : "");
  html += Tiles(input, parity);
  html += Charts(input);
  html += Samples(input);
  html += "<h2>Details</h2>\n" + StepTable(input.steps);
  html += "<details><summary>Spec of the job</summary><pre>" +
          EscapeHtml(rpc::ToJsonText(job.spec(), /*all_fields=*/false)) + "</pre></details>\n";
  html += fmt::format("<footer>run {} \xc2\xb7 report made {}</footer>\n", EscapeHtml(job.run_id()),
                      Time(input.made_unix_ms));
  return html + "</main></body></html>\n";
}

}  // namespace titan::cli
