// SPDX-License-Identifier: Apache-2.0
//
// Goal: with every kind of vectors the 32 hashes are xxh3's own, for every length, seed and index.
// Oracle: the library on the messages put together one at a time.
#include "weightstore/client/panel_runs.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <random>
#include <string>
#include <vector>

namespace titan::weightstore {
namespace {

TEST(PanelRunsTest, EveryLengthHashesAsXxh3) {
  if (BestPanelVectors() == PanelVectors::kNone) GTEST_SKIP() << "no vectors";
  std::mt19937_64 random(3);
  // Beyond the 256 elements of a run, for blocks of the hash that follow the first.
  for (int64_t num_words = kMinPanelRunWords; num_words < 900;
       num_words += num_words < 300 ? 1 : 37) {
    std::vector<uint32_t> words(static_cast<size_t>(num_words * kPanelRows));
    for (uint32_t& word : words) word = static_cast<uint32_t>(random());
    const uint64_t seed = num_words % 9 == 0 ? 0 : random();
    PanelRuns runs;
    runs.words = reinterpret_cast<const std::byte*>(words.data());
    runs.num_words = num_words;
    runs.first_index = random() >> (random() % 40);
    runs.index_step = random() % 100'000;
    runs.count = static_cast<uint32_t>(random());
    for (const bool swap : {false, true}) {
      runs.swap_halves = swap;
      for (const PanelVectors vectors : {PanelVectors::kAvx2, PanelVectors::kAvx512}) {
        if (vectors > BestPanelVectors()) continue;
        Hash128 hashes[kPanelRows];
        HashPanelRuns(runs, PanelSecret(seed), vectors, hashes);
        for (int64_t row = 0; row < kPanelRows; ++row) {
          const uint64_t index = runs.first_index + static_cast<uint64_t>(row) * runs.index_step;
          std::string message(reinterpret_cast<const char*>(&index), sizeof(index));
          message.append(reinterpret_cast<const char*>(&runs.count), sizeof(runs.count));
          for (int64_t i = 0; i < num_words; ++i) {
            uint32_t word = words[static_cast<size_t>(i * kPanelRows + row)];
            if (swap) word = word << 16 | word >> 16;
            message.append(reinterpret_cast<const char*>(&word), sizeof(word));
          }
          const XXH128_hash_t expected =
              XXH3_128bits_withSeed(message.data(), message.size(), seed);
          ASSERT_EQ(hashes[row], (Hash128{expected.low64, expected.high64}))
              << num_words << " words, row " << row << ", swap " << swap << ", vectors "
              << static_cast<int>(vectors);
        }
      }
    }
  }
}

}  // namespace
}  // namespace titan::weightstore
