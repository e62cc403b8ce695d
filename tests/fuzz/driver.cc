// SPDX-License-Identifier: Apache-2.0
// A driver for fuzz targets where libFuzzer is not there: runs LLVMFuzzerTestOneInput on every file
// of the corpus, then on mutations of them. It has no feedback from coverage; what it has is a
// seed, so that a run can be repeated.
//
//   fuzz_<target> [--runs N] [--seconds S] [--seed K] [--max_bytes B] <file or folder>...
// Further flags with a value are the target's.
//
// Ends after N mutations or S seconds, whichever comes first. A crash, a sanitizer's report, an
// input that takes longer than 20 s, or one that needs more than 1 GiB of memory (under
// AddressSanitizer: in one allocation) ends the process with another status than 0 and leaves the
// input in ./fuzz-failure-<target>; give that file alone to see it again.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <new>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/philox.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);
// What a target may have besides, as libFuzzer knows it: set-up, and a mutation of its own, which
// takes turns with those below.
extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);
extern "C" __attribute__((weak)) size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size,
                                                                size_t max_size, unsigned int seed);

namespace {

constexpr unsigned kSecondsPerInput = 20;
constexpr rlim_t kMemoryBytes = rlim_t{1} << 30;

// For the signal handler: the input in hand and where it goes.
const uint8_t* current_data = nullptr;
size_t current_size = 0;
char failure_path[4096];

void WriteCurrent(const char* what) {
  const int fd = open(failure_path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (fd >= 0) {
    ssize_t ignored = write(fd, current_data, current_size);
    close(fd);
    ignored = write(2, what, std::strlen(what));
    ignored = write(2, failure_path, std::strlen(failure_path));
    ignored = write(2, "\n", 1);
    (void)ignored;
  }
}

void OnSignal(int number) {
  WriteCurrent(number == SIGALRM ? "fuzz: an input takes too long, see " : "fuzz: crash, see ");
  signal(number, SIG_DFL);
  if (number == SIGALRM) _exit(3);
  raise(number);
}

void OnNoMemory() {
  WriteCurrent("fuzz: an input needs too much memory, see ");
  _exit(4);
}

#ifdef __SANITIZE_ADDRESS__
void OnReport() {
  if (current_data != nullptr) WriteCurrent("fuzz: a sanitizer's report, see ");
}
#endif

class Random {
 public:
  explicit Random(uint32_t seed) : seed_(seed) {}
  uint32_t Next() {
    if (left_ == 0) {
      words_ = titan::Philox4x32(
          {static_cast<uint32_t>(counter_), static_cast<uint32_t>(counter_ >> 32), 0, 0},
          {seed_, 0xf0220u}, 7);
      ++counter_;
      left_ = 4;
    }
    return words_[--left_];
  }
  // In [0, n); 0 if n is 0.
  size_t Below(size_t n) {
    return n == 0 ? 0 : static_cast<size_t>(uint64_t{Next()} * static_cast<uint64_t>(n) >> 32);
  }

 private:
  uint32_t seed_;
  uint64_t counter_ = 0;
  titan::PhiloxCounter words_{};
  size_t left_ = 0;
};

using Bytes = std::vector<uint8_t>;

// Numbers that break careless arithmetic.
constexpr uint64_t kNumbers[] = {
    0,          1,          2,          3,          7,          8,          9,
    31,         32,         33,         127,        128,        255,        256,
    32767,      65535,      65536,      0x7fffffff, 0x80000000, 0xffffffff, 1ull << 32,
    1ull << 40, 1ull << 62, 1ull << 63, ~0ull,      ~0ull - 7,  ~0ull - 31, 0x7fffffffffffffffull};
// Texts that mean something to one of the parsers.
constexpr std::string_view kTexts[] = {"\"",
                                       "\\",
                                       "\\u0000",
                                       "\\ud800",
                                       "{",
                                       "}",
                                       "[",
                                       "]",
                                       ":",
                                       ",",
                                       "null",
                                       "true",
                                       "-1",
                                       "1e999",
                                       "18446744073709551616",
                                       "9223372036854775807",
                                       "-0.0",
                                       "NaN",
                                       "{{",
                                       "}}",
                                       "{%",
                                       "%}",
                                       "{#",
                                       "#}",
                                       "{% for x in messages %}",
                                       "{% endfor %}",
                                       "{% if x %}",
                                       "{% endif %}",
                                       "{% set x = ",
                                       "|",
                                       "range(99999999)",
                                       "'",
                                       " ~ ",
                                       "*",
                                       "%",
                                       "(",
                                       ")",
                                       "\n",
                                       "\r\n",
                                       "\xe2\x80\xa8",
                                       "\xff",
                                       "\xc3",
                                       "\xe2\x96\x81",
                                       "__metadata__",
                                       "data_offsets",
                                       "dtype",
                                       "F32",
                                       "BF16",
                                       "shape",
                                       "GGUF",
                                       std::string_view("\0\0\0\0", 4),
                                       "\\p{L}",
                                       "(?i:",
                                       "(?!\\S)",
                                       "+",
                                       "{1,3}",
                                       "merges",
                                       "vocab",
                                       "added_tokens",
                                       "content"};

void Mutate(const std::vector<Bytes>& corpus, size_t max_bytes, Random* random, Bytes* input) {
  const size_t at = random->Below(input->size() + 1);
  const auto place = input->begin() + static_cast<ptrdiff_t>(at);
  const size_t left = input->size() - at;
  switch (random->Below(9)) {
    case 0:
      if (left > 0) (*input)[at] ^= static_cast<uint8_t>(1u << random->Below(8));
      return;
    case 1:
      if (left > 0) (*input)[at] = static_cast<uint8_t>(random->Next());
      return;
    case 2: {  // a number over what is there, 1, 2, 4 or 8 bytes
      const size_t width = size_t{1} << random->Below(4);
      const uint64_t number = kNumbers[random->Below(std::size(kNumbers))];
      if (left >= width) std::memcpy(input->data() + at, &number, width);
      return;
    }
    case 3:  // a byte plus or minus little
      if (left > 0) {
        (*input)[at] = static_cast<uint8_t>((*input)[at] + random->Below(9) - 4);
      }
      return;
    case 4:  // cut out
      input->erase(place,
                   place + static_cast<ptrdiff_t>(std::min(left, size_t{1} + random->Below(16))));
      return;
    case 5:  // cut off
      if (random->Below(4) == 0) input->resize(at);
      return;
    case 6: {  // say it twice
      const size_t count = std::min(left, size_t{1} + random->Below(64));
      if (input->size() + count > max_bytes) return;
      const Bytes copy(place, place + static_cast<ptrdiff_t>(count));
      input->insert(place, copy.begin(), copy.end());
      return;
    }
    case 7: {
      const std::string_view text = kTexts[random->Below(std::size(kTexts))];
      if (input->size() + text.size() > max_bytes) return;
      input->insert(place, text.begin(), text.end());
      return;
    }
    default: {  // a part of another input
      const Bytes& other = corpus[random->Below(corpus.size())];
      const size_t from = random->Below(other.size());
      const size_t count = std::min(other.size() - from, size_t{1} + random->Below(128));
      if (input->size() + count > max_bytes) return;
      input->insert(place, other.begin() + static_cast<ptrdiff_t>(from),
                    other.begin() + static_cast<ptrdiff_t>(from + count));
      return;
    }
  }
}

void RunOne(const Bytes& input) {
  // A copy of its own size, so that reading behind its end is seen by a sanitizer.
  const Bytes copy(input);
  current_data = copy.data();
  current_size = copy.size();
  alarm(kSecondsPerInput);
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
  alarm(0);
  current_data = nullptr;  // what is reported from here on, leaks at the end, is not of this input
  current_size = 0;
}

bool ReadCorpus(const std::string& path, std::vector<Bytes>* corpus) {
  namespace fs = std::filesystem;
  std::vector<std::string> files;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    for (const auto& entry : fs::recursive_directory_iterator(path, error)) {
      if (entry.is_regular_file(error)) files.push_back(entry.path().string());
    }
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  for (const std::string& file : files) {
    std::ifstream in(file, std::ios::binary);
    if (!in) {
      std::fprintf(stderr, "fuzz: cannot read %s\n", file.c_str());
      return false;
    }
    corpus->emplace_back(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  }
  return true;
}

}  // namespace

#ifdef __SANITIZE_ADDRESS__
// Read by the sanitizer before main. Megabytes.
extern "C" const char* __asan_default_options() { return "max_allocation_size_mb=1024"; }
#endif

int main(int argc, char** argv) {
  uint64_t runs = 0;
  double seconds = 1e9;
  uint32_t seed = 1;
  size_t max_bytes = 1 << 16;
  std::vector<Bytes> corpus;
  for (int i = 1; i < argc; ++i) {
    const std::string_view flag = argv[i];
    if (flag.starts_with("--") && i + 1 < argc) {
      const char* value = argv[++i];
      if (flag == "--runs") runs = std::strtoull(value, nullptr, 10);
      if (flag == "--seconds") seconds = std::strtod(value, nullptr);
      if (flag == "--seed") seed = static_cast<uint32_t>(std::strtoul(value, nullptr, 10));
      if (flag == "--max_bytes") max_bytes = std::strtoull(value, nullptr, 10);
    } else if (!ReadCorpus(argv[i], &corpus)) {
      return 2;
    }
  }
  if (corpus.empty()) {
    std::fprintf(stderr, "fuzz: the corpus is empty\n");
    return 2;
  }
  const std::string name = std::filesystem::path(argv[0]).filename().string();
  const std::string failure =  // whole: a target may change the folder
      (std::filesystem::current_path() / ("fuzz-failure-" + name)).string();
  std::snprintf(failure_path, sizeof(failure_path), "%s", failure.c_str());
#ifdef __SANITIZE_ADDRESS__
  // Its shadow takes terabytes of addresses; __asan_default_options limits what is allocated.
  __sanitizer_set_death_callback(OnReport);
#else
  const rlimit limit = {kMemoryBytes, kMemoryBytes};
  setrlimit(RLIMIT_AS, &limit);
#endif
  std::set_new_handler(OnNoMemory);
  for (const int number : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM}) {
    signal(number, OnSignal);
  }
  if (LLVMFuzzerInitialize != nullptr) LLVMFuzzerInitialize(&argc, &argv);
  for (const Bytes& input : corpus) RunOne(input);
  Random random(seed);
  const auto start = std::chrono::steady_clock::now();
  const auto elapsed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  };
  uint64_t done = 0;
  for (; runs == 0 || done < runs; ++done) {
    if (done % 64 == 0 && elapsed() > seconds) break;
    Bytes input = corpus[random.Below(corpus.size())];
    if (LLVMFuzzerCustomMutator != nullptr && random.Below(2) == 0) {
      const size_t size = input.size();
      input.resize(std::max(size, max_bytes));
      input.resize(LLVMFuzzerCustomMutator(input.data(), size, input.size(), random.Next()));
    } else {
      for (size_t count = 1 + random.Below(8); count > 0; --count) {
        Mutate(corpus, max_bytes, &random, &input);
      }
    }
    RunOne(input);
  }
  std::printf("%s: %zu files, %llu mutations, %.1f s, seed %u\n", name.c_str(), corpus.size(),
              static_cast<unsigned long long>(done), elapsed(), seed);
  return 0;
}
