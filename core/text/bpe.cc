// SPDX-License-Identifier: Apache-2.0
#include "core/text/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <queue>

#include "core/base/check.h"
#include "core/text/utf8.h"

namespace titan::text {
namespace {

constexpr uint32_t kAlphabetEnd = 0x144;  // one past the largest character of the byte alphabet

struct Alphabet {
  std::array<uint32_t, 256> character_of;       // byte -> code point
  std::array<int16_t, kAlphabetEnd> byte_of{};  // code point -> byte, -1: none
};

// Printable bytes stand for themselves; the other 68 are numbered from U+0100 on, ascending.
constexpr Alphabet MakeAlphabet() {
  Alphabet alphabet{};
  for (auto& byte : alphabet.byte_of) byte = -1;
  uint32_t next = 0x100;
  for (uint32_t b = 0; b < 256; ++b) {
    const bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
    alphabet.character_of[b] = printable ? b : next++;
    alphabet.byte_of[alphabet.character_of[b]] = static_cast<int16_t>(b);
  }
  return alphabet;
}

constexpr Alphabet kAlphabet = MakeAlphabet();

}  // namespace

bool BytesOfEntry(std::string_view entry, std::string* bytes) {
  bytes->clear();
  for (size_t at = 0; at < entry.size();) {
    const uint32_t c = NextCodePoint(entry, &at);
    if (c >= kAlphabetEnd || kAlphabet.byte_of[c] < 0) return false;
    bytes->push_back(static_cast<char>(kAlphabet.byte_of[c]));
  }
  return true;
}

std::string EntryOfBytes(std::string_view bytes) {
  std::string entry;
  for (const char byte : bytes)
    AppendUtf8(kAlphabet.character_of[static_cast<uint8_t>(byte)], &entry);
  return entry;
}

StatusOr<std::unique_ptr<BytePairModel>> BytePairModel::Create(const Options& options,
                                                               std::string_view where) {
  std::unique_ptr<BytePairModel> model(new BytePairModel);
  model->ignore_merges_ = options.ignore_merges;
  TokenId last = -1;
  std::vector<bool> taken;
  for (const auto& [entry, id] : options.vocabulary) {
    if (!IsValidUtf8(entry) || entry.empty()) {
      return InvalidArgument(
          fmt::format("{}: vocabulary: id {}: is empty or not UTF-8", where, id));
    }
    std::string bytes;
    const bool in_alphabet = BytesOfEntry(entry, &bytes);
    ByBytes& map = in_alphabet ? model->by_bytes_ : model->by_entry_;
    if (!map.emplace(in_alphabet ? bytes : entry, id).second) {
      return InvalidArgument(
          fmt::format("{}: vocabulary: entry \"{}\" stands twice", where, entry));
    }
    TITAN_CHECK(id >= 0);
    if (static_cast<size_t>(id) >= taken.size()) taken.resize(static_cast<size_t>(id) + 1);
    if (taken[static_cast<size_t>(id)]) {
      return InvalidArgument(fmt::format("{}: vocabulary: id {} stands twice", where, id));
    }
    taken[static_cast<size_t>(id)] = true;
    last = std::max(last, id);
  }
  model->whole_ = std::make_unique<std::atomic<uint8_t>[]>(static_cast<size_t>(last) + 1);
  for (size_t b = 0; b < 256; ++b) {
    const auto it = model->by_bytes_.find(std::string(1, static_cast<char>(b)));
    model->of_byte_[b] = it == model->by_bytes_.end() ? kNoToken : it->second;
  }
  if (options.merges.empty()) {
    return InvalidArgument(fmt::format("{}: merges: there are none", where));
  }
  for (size_t i = 0; i < options.merges.size(); ++i) {
    const auto& [left, right] = options.merges[i];
    TokenId ids[3];
    const std::string entries[3] = {left, right, left + right};
    for (int part = 0; part < 3; ++part) {
      ids[part] = model->FindEntry(entries[part]);
      if (ids[part] != kNoToken) continue;
      return InvalidArgument(
          fmt::format("{}: merges: position {}: token \"{}\" is not in the vocabulary", where, i,
                      entries[part]));
    }
    model->merges_[PairKey(ids[0], ids[1])] = Merge{static_cast<uint32_t>(i), ids[2]};
  }
  return model;
}

TokenId BytePairModel::FindEntry(std::string_view entry) const {
  if (!IsValidUtf8(entry)) return kNoToken;
  std::string bytes;
  const bool in_alphabet = BytesOfEntry(entry, &bytes);
  const ByBytes& map = in_alphabet ? by_bytes_ : by_entry_;
  const auto it = map.find(in_alphabet ? std::string_view(bytes) : entry);
  return it == map.end() ? kNoToken : it->second;
}

std::vector<uint8_t> BytePairModel::bytes_without_token() const {
  std::vector<uint8_t> out;
  for (size_t b = 0; b < 256; ++b) {
    if (of_byte_[b] == kNoToken) out.push_back(static_cast<uint8_t>(b));
  }
  return out;
}

void BytePairModel::EncodePiece(std::string_view piece, std::vector<TokenId>* out) const {
  const auto it = by_bytes_.find(piece);
  if (it == by_bytes_.end()) return Merged(piece, out);
  std::atomic<uint8_t>& whole = whole_[static_cast<size_t>(it->second)];
  const uint8_t known = whole.load(std::memory_order_relaxed);
  if (ignore_merges_ || known == kOneToken) {
    out->push_back(it->second);
    return;
  }
  const size_t before = out->size();
  Merged(piece, out);
  if (known == kUnknown) {
    const bool one = out->size() == before + 1 && out->back() == it->second;
    whole.store(one ? kOneToken : kSeveral, std::memory_order_relaxed);
  }
}

// Symbols in a linked list; a heap of the possible merges, the strongest and then the leftmost
// first. A heap entry is stale when one of its two symbols has changed since.
void BytePairModel::Merged(std::string_view piece, std::vector<TokenId>* out) const {
  struct Symbol {
    TokenId id;  // kNoToken: merged into the one before
    int32_t previous, next;
  };
  struct Candidate {
    uint32_t rank;
    int32_t at;
    TokenId left, right, merged;
    bool operator<(const Candidate& other) const {  // the heap gives the largest first
      return std::pair(rank, at) > std::pair(other.rank, other.at);
    }
  };
  std::vector<Symbol> symbols;
  symbols.reserve(piece.size());
  for (const char byte : piece) {
    const TokenId id = of_byte_[static_cast<uint8_t>(byte)];
    if (id == kNoToken) continue;
    const int32_t at = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, at - 1, at + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::priority_queue<Candidate> heap;
  const auto offer = [&](int32_t left) {
    if (left < 0 || symbols[static_cast<size_t>(left)].next < 0) return;
    const Symbol& symbol = symbols[static_cast<size_t>(left)];
    const TokenId right = symbols[static_cast<size_t>(symbol.next)].id;
    const auto it = merges_.find(PairKey(symbol.id, right));
    if (it == merges_.end()) return;
    heap.push({it->second.rank, left, symbol.id, right, it->second.merged});
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) offer(i);
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    Symbol& left = symbols[static_cast<size_t>(best.at)];
    if (left.id != best.left || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.id != best.right) continue;
    left.id = best.merged;
    right.id = kNoToken;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    out->push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace titan::text
