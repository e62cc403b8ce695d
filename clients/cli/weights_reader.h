// SPDX-License-Identifier: Apache-2.0
//
// The elements of weights wherever they are, a block of rows at a time: mapped out of the store's
// memory, on its disk, or in model files.
#ifndef TITAN_CLIENTS_CLI_WEIGHTS_READER_H_
#define TITAN_CLIENTS_CLI_WEIGHTS_READER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clients/cli/arguments.h"
#include "clients/cli/weights_difference.h"
#include "core/base/status.h"

namespace titan::cli {

// Rows of a tensor as a reader counts them: of a matrix its rows, of a vector its elements.
int64_t RowsOf(const TensorHead& head);
int64_t ColumnsOf(const TensorHead& head);

// Blocks of rows begin at multiples of this, but for what follows the last whole one.
inline constexpr int64_t kRowStep = 32;

// One thread. Of what the store has a few MiB are in memory, of model files the tensor that is
// read.
class WeightsReader {
 public:
  virtual ~WeightsReader() = default;

  // "version 3 of job-1", "model smol", or the path.
  virtual const std::string& title() const = 0;
  virtual const std::vector<TensorHead>& tensors() const = 0;
  // The rows [first, first + out.size() / columns) of a tensor, row-major, widened to f32. Rows are
  // asked for in order, each once, tensors in any order. DataLoss, naming what: damaged. Aborted:
  // the version was taken back.
  virtual Status Read(size_t tensor, int64_t first, std::span<float> out) = 0;
  // After the last row of a tensor: what was read of it is what was recorded. Codes of Read.
  virtual Status Finish(size_t tensor) = 0;
  // Names the bytes of a tensor on the store's disk: two that are equal are one file. "": they are
  // not there.
  virtual std::string BlobOf(size_t tensor) const = 0;
};

// `text`: what FindVersion takes, or a path: what has a '/' or ends in .gguf. Codes of FindVersion
// and formats::OpenModelSource.
StatusOr<std::unique_ptr<WeightsReader>> OpenWeights(const Common& common, const std::string& text);

}  // namespace titan::cli

#endif  // TITAN_CLIENTS_CLI_WEIGHTS_READER_H_
