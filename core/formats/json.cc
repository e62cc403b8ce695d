// SPDX-License-Identifier: Apache-2.0
#include "core/formats/json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

namespace titan::formats {
namespace {

// Watches the parser: remembers the keys of the open objects and the first offence.
class StrictKeys {
 public:
  // Returns false to make the parser drop what it reads, once the document is refused.
  bool OnEvent(int depth, Json::parse_event_t event, const Json& parsed) {
    if (!problem_.empty()) return false;
    switch (event) {
      case Json::parse_event_t::object_start:
      case Json::parse_event_t::array_start:
        if (depth >= kMaxJsonDepth) problem_ = fmt::format("nested deeper than {}", kMaxJsonDepth);
        open_.emplace_back();
        break;
      case Json::parse_event_t::object_end:
      case Json::parse_event_t::array_end:
        open_.pop_back();
        break;
      case Json::parse_event_t::key: {
        const std::string& key = parsed.get_ref<const std::string&>();
        if (!open_.back().insert(key).second)
          problem_ = fmt::format("key \"{}\" stands twice", key);
        break;
      }
      case Json::parse_event_t::value:
        break;
    }
    return problem_.empty();
  }

  const std::string& problem() const { return problem_; }

 private:
  std::vector<std::set<std::string>> open_;
  std::string problem_;
};

const Json kNull;

// What is wrong at byte `at` (1-based, of the last byte that was read), in words for people; the
// library's own text names its rules and classes.
std::string Describe(std::string_view text, size_t at, std::string_view library) {
  const auto says = [&](std::string_view words) {
    return library.find(words) != std::string_view::npos;
  };
  const size_t end = std::min(at == 0 ? 0 : at - 1, text.size());
  const auto line = std::count(text.begin(), text.begin() + static_cast<ptrdiff_t>(end), '\n') + 1;
  const size_t start = end == 0 ? std::string_view::npos : text.rfind('\n', end - 1);
  const size_t column = end - (start == std::string_view::npos ? 0 : start + 1) + 1;
  const bool one_line = text.find('\n') == std::string_view::npos;
  const std::string place =
      one_line ? fmt::format("column {}", column) : fmt::format("line {}, column {}", line, column);
  if (says("ill-formed UTF-8")) return place + ": a byte that is not UTF-8";
  if (says("control character")) return place + ": a control character in a string";
  if (says("surrogate")) return place + ": half of a surrogate pair in a string";
  if (says("escape") || says("followed by 4 hex digits")) return place + ": an unknown escape";
  if (end >= text.size()) return place + ": the text ends where it should go on";
  const auto byte = static_cast<unsigned char>(text[end]);
  if (says("missing closing quote")) return place + ": a string is not closed";
  if (byte < 0x20 || byte > 0x7e)
    return fmt::format("{}: byte 0x{:02x} should not stand here", place, byte);
  return fmt::format("{}: '{}' should not stand here", place, text[end]);
}

}  // namespace

StatusOr<Json> ParseJson(std::string_view text, std::string_view where) {
  StrictKeys keys;
  try {
    Json value = Json::parse(text, [&](int depth, Json::parse_event_t event, Json& parsed) {
      return keys.OnEvent(depth, event, parsed);
    });
    if (keys.problem().empty()) return value;
  } catch (const Json::parse_error& error) {
    if (keys.problem().empty()) {
      return InvalidArgument(
          fmt::format("{}: not valid JSON: {}", where, Describe(text, error.byte, error.what())));
    }
  } catch (const Json::exception&) {  // the only other one of the parser
    if (keys.problem().empty()) {
      return InvalidArgument(fmt::format("{}: a number is out of range", where));
    }
  }
  return InvalidArgument(fmt::format("{}: {}", where, keys.problem()));
}

bool JsonFields::IsNull(const char* field) const {
  const auto it = object_.find(field);
  return it != object_.end() && it->is_null();
}

bool JsonFields::Has(const char* field) const {
  const auto it = object_.find(field);
  return it != object_.end() && !it->is_null();
}

const Json& JsonFields::Value(const char* field) const {
  const auto it = object_.find(field);
  return it == object_.end() ? kNull : *it;
}

StatusOr<int64_t> JsonFields::Int(const char* field, int64_t low, int64_t high) const {
  if (!Has(field)) return Error(field, "is missing");
  const Json& value = Value(field);
  int64_t number = 0;
  if (value.is_number_unsigned()) {
    const uint64_t wide = value.get<uint64_t>();
    if (wide > static_cast<uint64_t>(INT64_MAX)) {
      return Error(field, fmt::format("{} is outside [{}, {}]", wide, low, high));
    }
    number = static_cast<int64_t>(wide);
  } else if (value.is_number_integer()) {
    number = value.get<int64_t>();
  } else if (value.is_number_float() && std::abs(value.get<double>()) < 0x1p53 &&
             value.get<double>() == std::trunc(value.get<double>())) {
    number = static_cast<int64_t>(value.get<double>());
  } else {
    return Error(field, "must be an integer");
  }
  if (number < low || number > high) {
    return Error(field, fmt::format("{} is outside [{}, {}]", number, low, high));
  }
  return number;
}

StatusOr<int64_t> JsonFields::IntOr(const char* field, int64_t low, int64_t high,
                                    int64_t missing) const {
  if (!Has(field)) return missing;
  return Int(field, low, high);
}

StatusOr<double> JsonFields::Number(const char* field, double low, double high) const {
  if (!Has(field)) return Error(field, "is missing");
  const Json& value = Value(field);
  if (!value.is_number()) return Error(field, "must be a number");
  const double number = value.get<double>();
  if (!(number >= low && number <= high)) {
    return Error(field, fmt::format("{} is outside [{}, {}]", number, low, high));
  }
  return number;
}

StatusOr<double> JsonFields::NumberOr(const char* field, double low, double high,
                                      double missing) const {
  if (!Has(field)) return missing;
  return Number(field, low, high);
}

StatusOr<bool> JsonFields::BoolOr(const char* field, bool missing) const {
  if (!Has(field)) return missing;
  const Json& value = Value(field);
  if (!value.is_boolean()) return Error(field, "must be true or false");
  return value.get<bool>();
}

StatusOr<std::string> JsonFields::String(const char* field) const {
  if (!Has(field)) return Error(field, "is missing");
  const Json& value = Value(field);
  if (!value.is_string()) return Error(field, "must be a string");
  return value.get<std::string>();
}

StatusOr<std::string> JsonFields::StringOr(const char* field, std::string_view missing) const {
  if (!Has(field)) return std::string(missing);
  return String(field);
}

Status JsonFields::Error(std::string_view field, std::string_view problem) const {
  return InvalidArgument(fmt::format("{}: {}: {}", where_, field, problem));
}

Status JsonFields::Refuse(std::string_view field, std::string_view problem) const {
  return Unimplemented(fmt::format("{}: {}: {}", where_, field, problem));
}

}  // namespace titan::formats
