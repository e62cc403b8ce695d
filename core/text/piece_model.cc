// SPDX-License-Identifier: Apache-2.0
#include "core/text/piece_model.h"

#include <fmt/format.h>

#include <cmath>
#include <queue>

#include "core/text/utf8.h"

namespace titan::text {
namespace {

uint64_t PairKey(TokenId left, TokenId right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

int HexDigit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

std::string WithoutSpaceSigns(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    if (text.substr(at).starts_with(kSpaceSign)) {
      out.push_back(' ');
      at += kSpaceSign.size();
    } else {
      out.push_back(text[at++]);
    }
  }
  return out;
}

int ByteOfEntry(std::string_view entry) {
  if (entry.size() != 6 || !entry.starts_with("<0x") || entry[5] != '>') return -1;
  const int high = HexDigit(entry[3]), low = HexDigit(entry[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

std::string EntryOfByte(uint8_t byte) { return fmt::format("<0x{:02X}>", byte); }

StatusOr<std::unique_ptr<PieceModel>> PieceModel::Create(const Options& options,
                                                         std::string_view where) {
  std::unique_ptr<PieceModel> model(new PieceModel);
  model->byte_tokens_ = options.byte_tokens;
  model->unk_ = options.unk;
  model->by_scores_ = options.by_scores;
  std::vector<bool> taken;
  for (const Piece& piece : options.pieces) {
    if (piece.text.empty() || !IsValidUtf8(piece.text)) {
      return InvalidArgument(
          fmt::format("{}: vocabulary: id {}: is empty or not UTF-8", where, piece.id));
    }
    if (!std::isfinite(piece.score)) {
      return InvalidArgument(
          fmt::format("{}: vocabulary: id {}: score is {}", where, piece.id, piece.score));
    }
    if (!model->by_text_.emplace(piece.text, Entry{piece.id, piece.score}).second) {
      return InvalidArgument(
          fmt::format("{}: vocabulary: piece \"{}\" stands twice", where, piece.text));
    }
    const size_t id = static_cast<size_t>(piece.id);
    if (id >= taken.size()) taken.resize(id + 1);
    if (taken[id]) {
      return InvalidArgument(fmt::format("{}: vocabulary: id {} stands twice", where, piece.id));
    }
    taken[id] = true;
  }
  for (size_t i = 0; i < options.merges.size(); ++i) {
    const auto& [left, right] = options.merges[i];
    TokenId ids[3];
    const std::string texts[3] = {left, right, left + right};
    for (int part = 0; part < 3; ++part) {
      ids[part] = model->FindEntry(texts[part]);
      if (ids[part] != kNoToken) continue;
      return InvalidArgument(fmt::format(
          "{}: merges: position {}: token \"{}\" is not in the vocabulary", where, i, texts[part]));
    }
    model->merges_[PairKey(ids[0], ids[1])] = {static_cast<uint32_t>(i), ids[2]};
  }
  return model;
}

TokenId PieceModel::FindEntry(std::string_view entry) const {
  const auto it = by_text_.find(entry);
  return it == by_text_.end() ? kNoToken : it->second.id;
}

std::vector<uint8_t> PieceModel::bytes_without_token() const {
  std::vector<uint8_t> out;
  for (size_t b = 0; b < byte_tokens_.size(); ++b) {
    if (byte_tokens_[b] == kNoToken) out.push_back(static_cast<uint8_t>(b));
  }
  return out;
}

bool PieceModel::MergeOf(std::string_view joined, TokenId left, TokenId right, double* key,
                         TokenId* merged) const {
  if (by_scores_) {
    const auto it = by_text_.find(joined);
    if (it == by_text_.end()) return false;
    *key = -static_cast<double>(it->second.score);
    *merged = it->second.id;
    return true;
  }
  if (left == kNoToken || right == kNoToken) return false;
  const auto it = merges_.find(PairKey(left, right));
  if (it == merges_.end()) return false;
  *key = it->second.first;
  *merged = it->second.second;
  return true;
}

// As BytePairModel: symbols in a linked list and a heap of the possible merges. A heap entry is
// stale when the size of one of its two symbols has changed since.
void PieceModel::EncodePiece(std::string_view piece, std::vector<TokenId>* out) const {
  struct Candidate {
    double key;
    int32_t at;
    size_t left_size, right_size;
    TokenId merged;
    bool operator<(const Candidate& other) const {  // the heap gives the largest first
      return std::pair(key, at) > std::pair(other.key, other.at);
    }
  };
  std::vector<Symbol> symbols;
  for (size_t at = 0; at < piece.size();) {
    const size_t begin = at;
    NextCodePoint(piece, &at);
    const int32_t index = static_cast<int32_t>(symbols.size());
    symbols.push_back(
        {begin, at - begin, FindEntry(piece.substr(begin, at - begin)), index - 1, index + 1});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::priority_queue<Candidate> heap;
  const auto offer = [&](int32_t index) {
    if (index < 0 || symbols[static_cast<size_t>(index)].next < 0) return;
    const Symbol& left = symbols[static_cast<size_t>(index)];
    const Symbol& right = symbols[static_cast<size_t>(left.next)];
    Candidate candidate{0, index, left.size, right.size, kNoToken};
    if (MergeOf(piece.substr(left.begin, left.size + right.size), left.id, right.id, &candidate.key,
                &candidate.merged)) {
      heap.push(candidate);
    }
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) offer(i);
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    Symbol& left = symbols[static_cast<size_t>(best.at)];
    if (left.size != best.left_size || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    if (right.size != best.right_size) continue;
    left.id = best.merged;
    left.size += right.size;
    left.next = right.next;
    right.size = 0;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = best.at;
    offer(left.previous);
    offer(best.at);
  }
  Emit(piece, symbols, out);
}

void PieceModel::Emit(std::string_view text, const std::vector<Symbol>& symbols,
                      std::vector<TokenId>* out) const {
  bool behind_unknown = false;
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    const Symbol& symbol = symbols[static_cast<size_t>(i)];
    if (symbol.id != kNoToken) {
      out->push_back(symbol.id);
      behind_unknown = false;
      continue;
    }
    if (byte_tokens_[0] != kNoToken) {
      for (const char byte : text.substr(symbol.begin, symbol.size)) {
        out->push_back(byte_tokens_[static_cast<uint8_t>(byte)]);
      }
      continue;
    }
    if (!behind_unknown && unk_ != kNoToken) out->push_back(unk_);
    behind_unknown = true;
  }
}

}  // namespace titan::text
