// SPDX-License-Identifier: Apache-2.0
//
// A tiny golden model in memory: decoder and slot, for tests of the engines. Test code.
#ifndef TITAN_TESTS_SUPPORT_TINY_MODEL_H_
#define TITAN_TESTS_SUPPORT_TINY_MODEL_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "core/base/check.h"
#include "core/formats/model_source.h"
#include "core/kernels/pool.h"
#include "core/model/decoder.h"
#include "core/model/memory.h"
#include "core/model/model_files.h"

namespace titan::testing {

struct TinyModel {
  std::unique_ptr<const model::Decoder> decoder;
  model::Floats slot;    // of the decoder's table
  model::Floats master;  // of its master table
};

// name: a folder of tests/golden/model/tiny.
inline TinyModel LoadTinyModel(const std::string& name, model::Mode mode = model::Mode::kF32) {
  const std::string folder = std::string(TITAN_SOURCE_DIR) + "/tests/golden/model/tiny/" + name;
  auto source = formats::OpenModelSource(folder);
  if (!source.ok()) ADD_FAILURE() << source.status();
  TITAN_CHECK(source.ok());
  TinyModel tiny;
  auto decoder = model::Decoder::Create((*source)->config(), 0, mode);
  TITAN_CHECK(decoder.ok());
  tiny.decoder = *std::move(decoder);
  kernels::Pool pool(1);
  const auto load = [&](const model::ParameterTable& table) {
    auto slot = model::AllocateFloats(table.slot_floats());
    TITAN_CHECK(slot.ok());
    TITAN_CHECK(model::LoadWeights(pool, **source, table, slot->get()).ok());
    return *std::move(slot);
  };
  tiny.slot = load(tiny.decoder->table());
  tiny.master = load(tiny.decoder->master_table());
  return tiny;
}

}  // namespace titan::testing

#endif  // TITAN_TESTS_SUPPORT_TINY_MODEL_H_
