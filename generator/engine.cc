// SPDX-License-Identifier: Apache-2.0
#include "generator/engine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/base/check.h"
#include "core/base/hash.h"
#include "core/kernels/attention.h"
#include "core/kernels/order.h"
#include "core/kernels/sampling.h"

namespace titan::generator {

std::string ToString(const VersionKey& key) {
  return key.run_id + "/" + std::to_string(key.version) + (key.evaluation ? " (evaluation)" : "");
}

namespace {

bool IsStop(const GroupRequest& request, TokenId token) {
  const auto& stops = request.stop_tokens;
  return std::find(stops.begin(), stops.end(), token) != stops.end();
}

// Of one step: one for each sample that decodes, and as many for prompts that end.
int64_t MaxLogitsRows(const Engine::Limits& limits) {
  return std::min(int64_t{limits.max_batch_rows}, 2 * int64_t{limits.max_running});
}

int64_t LogitsFloats(const model::Decoder& decoder, const Engine::Limits& limits) {
  return MaxLogitsRows(limits) * decoder.vocabulary();
}

int64_t NumPages(const model::Decoder& decoder, const Engine::Limits& limits) {
  return limits.kv_cache_bytes / model::KvCache::PageBytes(decoder.config());
}

model::Workspace::Limits ScratchOf(const Engine::Limits& limits) {
  model::Workspace::Limits scratch;
  scratch.max_rows = limits.max_batch_rows;
  scratch.max_head_rows = MaxLogitsRows(limits);
  return scratch;
}

}  // namespace

struct Engine::Version {
  model::Weights weights;
  std::function<bool()> still_granted;
};

struct Engine::Sample {
  SampleSpec spec;
  std::vector<TokenId> tokens;
  std::vector<float> log_probs;
  std::vector<int32_t> pages;  // whole table of the sequence; empty: not started, or finished
  bool finished = false;
  uint32_t running_max = 0;
  uint64_t fingerprint = 0;
};

struct Engine::Group {
  uint64_t id = 0;
  GroupRequest request;
  std::vector<int32_t> prompt_pages;  // empty: not admitted
  int64_t prefilled = 0;              // prompt positions whose keys and values are cached
  bool first_tokens_drawn = false;
  std::vector<Sample> samples;
  Status failure;

  int64_t prompt_size() const { return static_cast<int64_t>(request.prompt.size()); }
  bool admitted() const { return !prompt_pages.empty(); }
  bool all_started() const {
    return first_tokens_drawn && std::all_of(samples.begin(), samples.end(), [](const Sample& s) {
             return s.finished || !s.pages.empty();
           });
  }
  bool all_finished() const {
    return std::all_of(samples.begin(), samples.end(), [](const Sample& s) { return s.finished; });
  }
  int64_t sequence_limit() const { return prompt_size() + request.max_new_tokens; }
};

// One forward: rows of decoding samples, then prompt chunks.
struct Engine::Plan {
  struct Entry {
    Group* group;
    Sample* sample;  // null: a prompt chunk
    int64_t rows;
    int logits_row;  // -1: this chunk does not end its prompt
  };
  const Version* version = nullptr;
  VersionKey key;
  std::vector<Entry> entries;
  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<kernels::Segment> segments;
  std::vector<int32_t> logits_rows;
  uint32_t sequences = 0;
  uint64_t fingerprint = 0;
};

Engine::Engine(const model::Decoder& decoder, kernels::Pool& pool, const Limits& limits,
               model::KvCache cache, std::unique_ptr<model::Workspace> workspace,
               model::Floats logits)
    : decoder_(decoder),
      pool_(pool),
      limits_(limits),
      cache_(std::move(cache)),
      workspace_(std::move(workspace)),
      pages_(static_cast<int>(cache_.num_pages())),
      logits_(std::move(logits)) {}

Engine::~Engine() = default;

Engine::Memory Engine::MemoryNeeded(const model::Decoder& decoder, const Limits& limits,
                                    int own_versions) {
  Memory needed;
  needed.cache = NumPages(decoder, limits) * model::KvCache::PageBytes(decoder.config());
  needed.activations = model::Workspace::MemoryNeeded(decoder, ScratchOf(limits));
  needed.logits = LogitsFloats(decoder, limits) * static_cast<int64_t>(sizeof(float));
  needed.rope = decoder.rope_bytes();
  needed.weights = own_versions * decoder.table().slot_bytes();
  return needed;
}

StatusOr<std::unique_ptr<Engine>> Engine::Create(const model::Decoder& decoder, kernels::Pool& pool,
                                                 const Limits& limits) {
  if (limits.max_running < 1 || limits.max_batch_rows < 1 || limits.max_queued_groups < 1) {
    return InvalidArgument(
        "generator limits: max_running_sequences, max_batch_tokens and "
        "max_queued_groups must be at least 1");
  }
  if (limits.max_batch_rows < limits.max_running) {
    return InvalidArgument("max_batch_tokens (" + std::to_string(limits.max_batch_rows) +
                           ") must be at least max_running_sequences (" +
                           std::to_string(limits.max_running) + ")");
  }
  const int64_t num_pages = NumPages(decoder, limits);
  if (num_pages < 1) {
    const std::string page = std::to_string(model::KvCache::PageBytes(decoder.config()));
    const std::string tokens = std::to_string(kernels::kPageTokens);
    return InvalidArgument(
        "kv_cache_bytes of the generator's config is " + std::to_string(limits.kv_cache_bytes) +
        ", and a cache page of this model, " + tokens + " tokens of one sequence, has " + page +
        " bytes; set it to at least " + page + ", and to as much for every " + tokens +
        " tokens of all sequences that run at once");
  }
  TITAN_ASSIGN_OR_RETURN(model::KvCache cache,
                         model::KvCache::Create(decoder.config(), num_pages, pool));
  TITAN_ASSIGN_OR_RETURN(auto workspace,
                         model::Workspace::Create(decoder, ScratchOf(limits), pool));
  const int64_t logits_floats = LogitsFloats(decoder, limits);
  TITAN_ASSIGN_OR_RETURN(model::Floats logits, model::AllocateFloats(logits_floats));
  model::TakePages(pool, logits.get(), logits_floats);
  return std::unique_ptr<Engine>(
      new Engine(decoder, pool, limits, std::move(cache), std::move(workspace), std::move(logits)));
}

Status Engine::AddVersion(const VersionKey& key, const void* slot,
                          std::function<bool()> still_granted) {
  if (versions_.contains(key))
    return AlreadyExists("version " + ToString(key) + " is held already");
  versions_[key] = {model::WeightsOf(decoder_.table(), slot), std::move(still_granted)};
  return OkStatus();
}

Status Engine::RemoveVersion(const VersionKey& key) {
  const auto it = versions_.find(key);
  if (it == versions_.end()) return NotFound("version " + ToString(key) + " is not held");
  for (const auto& [id, group] : groups_) {
    if (group->request.version == key) {
      return FailedPrecondition("version " + ToString(key) + " is in use by request " +
                                std::to_string(id));
    }
  }
  versions_.erase(it);
  return OkStatus();
}

bool Engine::Holds(const VersionKey& key) const { return versions_.contains(key); }

int Engine::PagesFor(int64_t positions) const {
  return static_cast<int>((positions + kernels::kPageTokens - 1) / kernels::kPageTokens);
}

StatusOr<uint64_t> Engine::Submit(GroupRequest request) {
  if (!Holds(request.version)) {
    return FailedPrecondition("version " + ToString(request.version) +
                              " is not held; load it before asking for samples of it");
  }
  if (request.prompt.empty()) return InvalidArgument("prompt_token_ids: must not be empty");
  for (size_t i = 0; i < request.prompt.size(); ++i) {
    if (request.prompt[i] < 0 || request.prompt[i] >= decoder_.vocabulary()) {
      return InvalidArgument(
          "prompt_token_ids[" + std::to_string(i) + "]: " + std::to_string(request.prompt[i]) +
          " is outside the vocabulary of " + std::to_string(decoder_.vocabulary()));
    }
  }
  if (request.samples.empty()) return InvalidArgument("sample_indexes: must not be empty");
  if (request.max_new_tokens < 1)
    return InvalidArgument("sampling.max_new_tokens: must be at least 1");
  if (const auto inverse = kernels::InverseTemperature(request.temperature); !inverse.ok()) {
    return Annotate(inverse.status(), "sampling.temperature");
  }
  const int64_t limit = static_cast<int64_t>(request.prompt.size()) + request.max_new_tokens;
  if (limit > decoder_.max_positions()) {
    return InvalidArgument("prompt (" + std::to_string(request.prompt.size()) +
                           " tokens) + max_new_tokens (" + std::to_string(request.max_new_tokens) +
                           ") exceeds the context of " + std::to_string(decoder_.max_positions()));
  }
  const int worst = PagesFor(static_cast<int64_t>(request.prompt.size())) + PagesFor(limit);
  if (worst > pages_.num_pages()) {
    const int64_t page = model::KvCache::PageBytes(decoder_.config());
    return InvalidArgument("the request needs " + std::to_string(worst) + " cache pages of " +
                           std::to_string(page) + " bytes, and kv_cache_bytes (" +
                           std::to_string(limits_.kv_cache_bytes) + ") holds " +
                           std::to_string(pages_.num_pages()) + "; set it to at least " +
                           std::to_string(worst * page));
  }
  if (num_queued_groups() >= limits_.max_queued_groups) {
    return ResourceExhausted("queue full: " + std::to_string(limits_.max_queued_groups) +
                             " groups wait (max_queued_groups)");
  }
  auto group = std::make_unique<Group>();
  group->id = next_request_++;
  for (const SampleSpec& spec : request.samples) {
    group->samples.push_back({});
    group->samples.back().spec = spec;
  }
  group->request = std::move(request);
  const uint64_t id = group->id;
  groups_[id] = std::move(group);
  return id;
}

void Engine::Cancel(uint64_t request) {
  const auto it = groups_.find(request);
  if (it != groups_.end()) DropGroup(it);
}

int Engine::num_queued_groups() const {
  return static_cast<int>(std::count_if(
      groups_.begin(), groups_.end(), [](const auto& entry) { return !entry.second->admitted(); }));
}

void Engine::DropGroup(std::map<uint64_t, std::unique_ptr<Group>>::iterator it) {
  for (Sample& sample : it->second->samples) {
    if (!sample.pages.empty()) --running_;
    for (const int32_t page : sample.pages) pages_.Release(page);
  }
  for (const int32_t page : it->second->prompt_pages) pages_.Release(page);
  groups_.erase(it);
}

// Stable: request ids ascend with arrival.
std::vector<Engine::Group*> Engine::ByUrgency() const {
  std::vector<Group*> order;
  order.reserve(groups_.size());
  for (const auto& [id, group] : groups_) order.push_back(group.get());
  std::stable_sort(order.begin(), order.end(), [](const Group* a, const Group* b) {
    return a->request.priority < b->request.priority;
  });
  return order;
}

bool Engine::StartSample(Group& group, Sample& sample) {
  if (running_ >= limits_.max_running) return false;
  const int full_pages = static_cast<int>(group.prompt_size() / kernels::kPageTokens);
  // The last token is sampled but never fed, so its position needs no cache.
  const int total_pages = PagesFor(group.sequence_limit() - 1);
  if (pages_.num_free() < total_pages - full_pages) return false;
  for (int i = 0; i < full_pages; ++i) {
    pages_.Share(group.prompt_pages[static_cast<size_t>(i)]);
    sample.pages.push_back(group.prompt_pages[static_cast<size_t>(i)]);
  }
  while (static_cast<int>(sample.pages.size()) < total_pages) sample.pages.push_back(pages_.Take());
  if (group.prompt_size() % kernels::kPageTokens != 0) {  // copy on write of the partial page
    const auto page_floats = static_cast<size_t>(kernels::PageFloats(decoder_.attention_shape()));
    const auto from = static_cast<size_t>(group.prompt_pages[static_cast<size_t>(full_pages)]);
    const auto to = static_cast<size_t>(sample.pages[static_cast<size_t>(full_pages)]);
    for (int layer = 0; layer < cache_.num_layers(); ++layer) {
      float* base = cache_.layer(layer);
      std::memcpy(base + to * page_floats, base + from * page_floats, page_floats * sizeof(float));
    }
  }
  ++running_;
  return true;
}

bool Engine::AdmitPrompt(int64_t* waiting_rows) {
  for (Group* group : ByUrgency()) {
    if (group->admitted()) {
      // Samples that wait for room come first, else prompts could fill the cache for good.
      if (group->first_tokens_drawn && !group->all_started()) return false;
      continue;
    }
    const int prompt_pages = PagesFor(group->prompt_size());
    const int sample_pages = PagesFor(group->sequence_limit());
    if (pages_.num_free() < prompt_pages + sample_pages) return false;
    for (int i = 0; i < prompt_pages; ++i) group->prompt_pages.push_back(pages_.Take());
    *waiting_rows += group->prompt_size();
    return true;
  }
  return false;
}

void Engine::AdmitAndStart() {
  for (Group* group : ByUrgency()) {
    if (!group->first_tokens_drawn) continue;
    for (Sample& sample : group->samples) {
      if (sample.finished || !sample.pages.empty()) continue;
      if (!StartSample(*group, sample)) break;
    }
  }
  // Several prompts may prefill together: admit while the row limit is not yet used up by them.
  int64_t waiting_rows = 0;
  for (const auto& [id, group] : groups_) {
    if (group->admitted()) waiting_rows += group->prompt_size() - group->prefilled;
  }
  while (waiting_rows < limits_.max_batch_rows && AdmitPrompt(&waiting_rows)) {
  }
}

Engine::Plan Engine::PlanStep() {
  Plan plan;
  const std::vector<Group*> order = ByUrgency();
  const auto runnable = [](const Group& group) {
    if (group.admitted() && !group.first_tokens_drawn) return true;
    return std::any_of(group.samples.begin(), group.samples.end(),
                       [](const Sample& sample) { return !sample.pages.empty(); });
  };
  const auto first = std::find_if(order.begin(), order.end(),
                                  [&](const Group* group) { return runnable(*group); });
  if (first == order.end()) return plan;
  plan.key = (*first)->request.version;
  const auto version = versions_.find(plan.key);
  TITAN_CHECK(version != versions_.end());
  plan.version = &version->second;

  uint64_t composition = 0;
  const auto add_rows = [&](Group* group, Sample* sample, const TokenId* tokens, int64_t rows,
                            int64_t position, const std::vector<int32_t>& pages, bool want_logits) {
    plan.segments.push_back({static_cast<int32_t>(plan.tokens.size()), static_cast<int32_t>(rows),
                             static_cast<int32_t>(position), pages.data()});
    for (int64_t i = 0; i < rows; ++i) {
      plan.tokens.push_back(tokens[i]);
      plan.positions.push_back(static_cast<int32_t>(position + i));
    }
    int logits_row = -1;
    if (want_logits) {
      logits_row = static_cast<int>(plan.logits_rows.size());
      plan.logits_rows.push_back(static_cast<int32_t>(plan.tokens.size()) - 1);
    }
    plan.entries.push_back({group, sample, rows, logits_row});
    composition = HashFields(composition, group->request.group.value,
                             sample != nullptr ? sample->spec.id.value : 0, position, rows);
  };

  for (Group* group : order) {
    if (group->request.version != plan.key) continue;
    for (Sample& sample : group->samples) {
      if (sample.pages.empty()) continue;
      const int64_t position =
          group->prompt_size() + static_cast<int64_t>(sample.tokens.size()) - 1;
      add_rows(group, &sample, &sample.tokens.back(), 1, position, sample.pages, true);
      ++plan.sequences;
    }
  }
  for (Group* group : order) {
    if (group->request.version != plan.key || !group->admitted() || group->first_tokens_drawn)
      continue;
    const int64_t room = limits_.max_batch_rows - static_cast<int64_t>(plan.tokens.size());
    if (room <= 0) break;
    const int64_t left = group->prompt_size() - group->prefilled;
    const int64_t rows = std::min(room, left);
    const auto num_logits = static_cast<int64_t>(plan.logits_rows.size());
    if (rows == left && num_logits == MaxLogitsRows(limits_)) break;  // ends in a later step
    add_rows(group, nullptr, group->request.prompt.data() + group->prefilled, rows,
             group->prefilled, group->prompt_pages, rows == left);
    ++plan.sequences;
  }
  plan.fingerprint = composition;
  return plan;
}

bool Engine::Append(const Group& group, Sample& sample, const kernels::SampledToken& drawn) {
  sample.tokens.push_back(drawn.token);
  sample.log_probs.push_back(drawn.logprob);
  ++tokens_generated_;
  return IsStop(group.request, drawn.token) ||
         static_cast<int32_t>(sample.tokens.size()) >= group.request.max_new_tokens;
}

void Engine::Finish(Group& group, Sample& sample, StepOutput* output) {
  sample.finished = true;
  if (!sample.pages.empty()) --running_;
  for (const int32_t page : sample.pages) pages_.Release(page);
  sample.pages.clear();
  SampleResult result;
  result.request = group.id;
  result.sample_index = sample.spec.index;
  result.reason =
      IsStop(group.request, sample.tokens.back()) ? FinishReason::kStop : FinishReason::kLength;
  result.tokens = std::move(sample.tokens);
  result.log_probs = std::move(sample.log_probs);
  result.sequences_running_max = sample.running_max;
  result.batch_fingerprint = sample.fingerprint;
  output->finished.push_back(std::move(result));
}

void Engine::NoteBatch(Sample& sample, const Plan& plan) const {
  sample.running_max = std::max(sample.running_max, plan.sequences);
  sample.fingerprint = HashFields(sample.fingerprint, plan.fingerprint);
}

void Engine::Emit(Plan& plan, StepOutput* output) {
  const int64_t vocabulary = decoder_.vocabulary();
  struct Draw {
    Group* group;
    Sample* sample;
    const float* logits;
    StatusOr<kernels::SampledToken> token = kernels::SampledToken{};
  };
  std::vector<Draw> draws;
  for (const Plan::Entry& entry : plan.entries) {
    const float* logits =
        entry.logits_row < 0 ? nullptr : logits_.get() + entry.logits_row * vocabulary;
    if (entry.sample != nullptr) {
      draws.push_back({entry.group, entry.sample, logits});
      continue;
    }
    entry.group->prefilled += entry.rows;
    if (logits == nullptr) continue;
    entry.group->first_tokens_drawn = true;
    for (Sample& sample : entry.group->samples) draws.push_back({entry.group, &sample, logits});
  }
  pool_.Run(static_cast<int>(draws.size()), [&](int i) {
    Draw& draw = draws[static_cast<size_t>(i)];
    kernels::SampleRequest request;
    request.temperature = draw.group->request.temperature;
    request.seed = draw.group->request.seed;
    request.sample_id = draw.sample->spec.id.value;
    request.position = static_cast<uint32_t>(draw.group->prompt_size()) +
                       static_cast<uint32_t>(draw.sample->tokens.size());
    draw.token = kernels::SampleToken(draw.logits, vocabulary, request);
  });
  for (Draw& draw : draws) {
    if (!draw.token.ok()) {
      draw.group->failure = Annotate(draw.token.status(), "version " + ToString(plan.key));
      continue;
    }
    NoteBatch(*draw.sample, plan);
    if (Append(*draw.group, *draw.sample, *draw.token)) Finish(*draw.group, *draw.sample, output);
  }
}

Engine::StepOutput Engine::Step() {
  StepOutput output;
  AdmitAndStart();
  Plan plan = PlanStep();
  if (plan.entries.empty()) return output;
  output.rows = static_cast<int>(plan.tokens.size());
  sequences_running_max_ = std::max(sequences_running_max_, static_cast<int>(plan.sequences));

  TITAN_CHECK(static_cast<int64_t>(plan.logits_rows.size()) <= MaxLogitsRows(limits_));
  const model::DecoderContext context{decoder_, pool_, *workspace_};
  const model::ForwardBatch batch{plan.tokens, plan.positions, plan.segments};
  model::ForwardLogits(context, plan.version->weights, batch, cache_, plan.logits_rows,
                       logits_.get());

  if (!plan.version->still_granted()) {
    // The slot was taken back while we read it: nothing of this step may leave (weightstore.md
    // section 4).
    for (auto it = groups_.begin(); it != groups_.end();) {
      const auto current = it++;
      if (current->second->request.version != plan.key) continue;
      output.failed.push_back(
          {current->first, Aborted("the weight store took version " + ToString(plan.key) +
                                   " back while it was in use")});
      DropGroup(current);
    }
    versions_.erase(plan.key);
    return output;
  }
  Emit(plan, &output);
  for (auto it = groups_.begin(); it != groups_.end();) {
    const auto current = it++;
    if (!current->second->failure.ok()) {
      output.failed.push_back({current->first, current->second->failure});
    } else if (!current->second->all_finished()) {
      continue;
    }
    DropGroup(current);
  }
  return output;
}

}  // namespace titan::generator
