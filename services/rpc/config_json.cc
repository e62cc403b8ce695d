// SPDX-License-Identifier: Apache-2.0
// The printing half of config.h.
#include <google/protobuf/descriptor.h>

#include <charconv>

#include <nlohmann/json.hpp>

#include "services/rpc/config.h"

namespace titan::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// Which fields without a value are printed.
enum class Unset {
  kLeftOut,
  kNull,      // zero and empty as they are, optional values and messages as null
  kDefaults,  // messages that are not set as the defaults of their fields
};

Json MessageToJson(const Message& message, Unset unset);

// The double that prints as short as the float does (0.7, not 0.699999988) and reads back as it.
double ShortFloat(float value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof(text), value).ptr;
  double shortest = value;
  std::from_chars(text, end, shortest);
  return static_cast<float>(shortest) == value ? shortest : value;
}

// index < 0: the singular value.
Json ValueToJson(const Message& m, const FieldDescriptor* field, int index, Unset unset) {
  const Reflection* r = m.GetReflection();
  const bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? r->GetInt32(m, field) : r->GetRepeatedInt32(m, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? r->GetInt64(m, field) : r->GetRepeatedInt64(m, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? r->GetUInt32(m, field) : r->GetRepeatedUInt32(m, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? r->GetUInt64(m, field) : r->GetRepeatedUInt64(m, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? r->GetDouble(m, field) : r->GetRepeatedDouble(m, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return ShortFloat(one ? r->GetFloat(m, field) : r->GetRepeatedFloat(m, field, index));
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? r->GetBool(m, field) : r->GetRepeatedBool(m, field, index);
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? r->GetString(m, field) : r->GetRepeatedString(m, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return (one ? r->GetEnum(m, field) : r->GetRepeatedEnum(m, field, index))->name();
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return MessageToJson(one ? r->GetMessage(m, field) : r->GetRepeatedMessage(m, field, index),
                           unset);
  }
  return Json();
}

bool IsPrinted(const Message& message, const FieldDescriptor* field, Unset unset) {
  const Reflection* r = message.GetReflection();
  const bool set =
      field->is_repeated() ? r->FieldSize(message, field) > 0 : r->HasField(message, field);
  if (set) return true;
  // Another member of the oneof speaks for it.
  if (unset == Unset::kLeftOut || field->real_containing_oneof() != nullptr) return false;
  // An optional value that is not set has no default to show.
  return unset == Unset::kNull || field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE ||
         !field->has_presence();
}

Json MessageToJson(const Message& message, Unset unset) {
  const Descriptor* descriptor = message.GetDescriptor();
  const Reflection* r = message.GetReflection();
  Json json = Json::object();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor* field = descriptor->field(i);
    if (!IsPrinted(message, field, unset)) continue;
    if (field->is_map()) {
      Json map = Json::object();
      for (int k = 0; k < r->FieldSize(message, field); ++k) {
        const Message& entry = r->GetRepeatedMessage(message, field, k);
        const Json key = ValueToJson(entry, field->message_type()->map_key(), -1, unset);
        map[key.is_string() ? key.get<std::string>() : key.dump()] =
            ValueToJson(entry, field->message_type()->map_value(), -1, unset);
      }
      json[field->name()] = std::move(map);
    } else if (field->is_repeated()) {
      Json items = Json::array();
      for (int k = 0; k < r->FieldSize(message, field); ++k) {
        items.push_back(ValueToJson(message, field, k, unset));
      }
      json[field->name()] = std::move(items);
    } else if (unset == Unset::kNull && field->has_presence() && !r->HasField(message, field)) {
      json[field->name()] = nullptr;
    } else {
      json[field->name()] = ValueToJson(message, field, -1, unset);
    }
  }
  return json;
}

void CollectOrigins(const Json& json, const std::string& path, const ConfigOrigins& origins,
                    Json* out) {
  for (const auto& [name, value] : json.items()) {
    const std::string here = path.empty() ? name : path + "." + name;
    if (value.is_object()) {
      CollectOrigins(value, here, origins, out);
      continue;
    }
    (*out)[here] = origins.Of(here);
    if (!value.is_array()) continue;
    for (size_t i = 0; i < value.size(); ++i) {
      if (!value[i].is_object()) continue;
      CollectOrigins(value[i], here + "[" + std::to_string(i) + "]", origins, out);
    }
  }
}

}  // namespace

std::string ToJsonText(const Message& message, bool all_fields, int indent) {
  return MessageToJson(message, all_fields ? Unset::kNull : Unset::kLeftOut)
      .dump(indent, ' ', false, Json::error_handler_t::replace);
}

std::string PrintConfig(const Message& message, const ConfigOrigins& origins) {
  Json out;
  out["config"] = MessageToJson(message, Unset::kDefaults);
  out["origins"] = Json::object();
  CollectOrigins(out["config"], "", origins, &out["origins"]);
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace titan::rpc
