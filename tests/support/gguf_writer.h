// SPDX-License-Identifier: Apache-2.0
//
// Writes a small GGUF file (version 3, F32 tensors) from keys and tensors: models of architectures
// for which no file lies in the repository. Test code.
#ifndef TITAN_TESTS_SUPPORT_GGUF_WRITER_H_
#define TITAN_TESTS_SUPPORT_GGUF_WRITER_H_

#include <cstdint>
#include <cstring>
#include <fstream>
#include <span>
#include <string>
#include <vector>

namespace titan::test {

class GgufWriter {
 public:
  void Text(const std::string& key, const std::string& value) {
    Key(key, 8);
    Append(&keys_, value);
  }
  void Uint32(const std::string& key, uint32_t value) {
    Key(key, 4);
    Append(&keys_, value);
  }
  void Float(const std::string& key, float value) {
    Key(key, 6);
    Append(&keys_, value);
  }
  // shape is row-major, as in a Hugging Face file; the format stores it reversed.
  void Tensor(const std::string& name, const std::vector<int64_t>& shape,
              std::span<const float> values) {
    Append(&tensors_, name);
    Append(&tensors_, static_cast<uint32_t>(shape.size()));
    for (size_t i = shape.size(); i > 0; --i) {
      Append(&tensors_, static_cast<uint64_t>(shape[i - 1]));
    }
    Append(&tensors_, uint32_t{0});  // F32
    Append(&tensors_, static_cast<uint64_t>(data_.size()));
    data_.append(reinterpret_cast<const char*>(values.data()), values.size_bytes());
    data_.resize((data_.size() + 31) / 32 * 32);
    ++num_tensors_;
  }
  void Write(const std::string& path) const {
    std::string file = "GGUF";
    Append(&file, uint32_t{3});
    Append(&file, num_tensors_);
    Append(&file, num_keys_);
    file += keys_ + tensors_;
    file.resize((file.size() + 31) / 32 * 32);
    file += data_;
    std::ofstream(path, std::ios::binary) << file;
  }

 private:
  template <typename T>
  static void Append(std::string* out, T value) {
    char bytes[sizeof(T)];
    std::memcpy(bytes, &value, sizeof(T));
    out->append(bytes, sizeof(T));
  }
  static void Append(std::string* out, const std::string& text) {
    Append(out, static_cast<uint64_t>(text.size()));
    *out += text;
  }
  void Key(const std::string& key, uint32_t type) {
    Append(&keys_, key);
    Append(&keys_, type);
    ++num_keys_;
  }

  std::string keys_, tensors_, data_;
  uint64_t num_keys_ = 0, num_tensors_ = 0;
};

}  // namespace titan::test

#endif  // TITAN_TESTS_SUPPORT_GGUF_WRITER_H_
