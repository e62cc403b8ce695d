// SPDX-License-Identifier: Apache-2.0
#include "services/rpc/config.h"

#include <fmt/format.h>
#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>

#include "core/base/nearest_name.h"
#include "core/runtime/files.h"

namespace titan::rpc {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;

// "file:line:column"; without the numbers for what has no place in a file (line 0).
std::string Place(const std::string& where, JsonPosition at) {
  return at.line == 0 ? where : fmt::format("{}:{}:{}", where, at.line, at.column);
}

// Walks a JSON tree along a message; collects every problem.
class Reader {
 public:
  Reader(std::string where, ConfigOrigins* origins, const ValidValues& valid)
      : where_(std::move(where)), origins_(origins), valid_(valid) {}

  void ReadMessage(const JsonNode& node, const std::string& path, Message* message) {
    if (node.kind != JsonNode::Kind::kObject) {
      Problem(node.position, path, fmt::format("wants an object, has {}", Describe(node.kind)));
      return;
    }
    // The place of the object is the place of what it lacks.
    if (node.position.line > 0) origins_->SetFromFile(path, where_, node.position);
    const Descriptor* descriptor = message->GetDescriptor();
    for (const JsonNode::Member& member : node.members) {
      const std::string field_path = path.empty() ? member.name : path + "." + member.name;
      const FieldDescriptor* field = descriptor->FindFieldByName(member.name);
      if (field == nullptr) {
        UnknownField(member, path, field_path, descriptor);
        continue;
      }
      if (member.value.kind == JsonNode::Kind::kNull) continue;  // as if it were left out
      if (field->is_repeated()) {
        ReadRepeated(member.value, field_path, message, field);
      } else {
        ReadSingle(member.value, field_path, message, field);
      }
    }
  }

  ConfigProblems TakeProblems() { return std::move(problems_); }

 private:
  void Problem(JsonPosition at, const std::string& path, const std::string& what,
               const std::string& meant = "") {
    origins_->SetFromFile(path, where_, at);
    problems_.push_back({path, path.empty() ? "the document: " + what : what, "", meant});
  }

  void UnknownField(const JsonNode::Member& member, const std::string& parent,
                    const std::string& path, const Descriptor* descriptor) {
    std::vector<std::string> names;
    for (int i = 0; i < descriptor->field_count(); ++i)
      names.push_back(descriptor->field(i)->name());
    const std::string nearest = NearestName(member.name, names);
    if (nearest.empty()) {
      Problem(member.position, path,
              fmt::format("unknown field; valid here: {}", fmt::join(names, ", ")));
    } else {
      Problem(member.position, path, fmt::format("unknown field; did you mean \"{}\"?", nearest),
              parent.empty() ? nearest : parent + "." + nearest);
    }
  }

  void ReadRepeated(const JsonNode& node, const std::string& path, Message* message,
                    const FieldDescriptor* field) {
    if (field->is_map()) {
      Problem(node.position, path, "maps cannot be written in a config file");
      return;
    }
    if (node.kind != JsonNode::Kind::kArray) {
      Problem(node.position, path, fmt::format("wants an array, has {}", Describe(node.kind)));
      return;
    }
    message->GetReflection()->ClearField(message, field);
    origins_->SetFromFile(path, where_, node.position);
    for (size_t i = 0; i < node.items.size(); ++i) {
      ReadValue(node.items[i], fmt::format("{}[{}]", path, i), message, field, /*add=*/true);
    }
  }

  void ReadSingle(const JsonNode& node, const std::string& path, Message* message,
                  const FieldDescriptor* field) {
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE) {
      origins_->SetFromFile(path, where_, node.position);
    }
    ReadValue(node, path, message, field, /*add=*/false);
  }

  // "; valid: 1 to 64", or what stands for it.
  std::string Valid(const std::string& path, const std::string& otherwise = "") const {
    const std::string valid = valid_ ? valid_(path) : "";
    return valid.empty() ? otherwise : "; valid: " + valid;
  }

  bool WantKind(const JsonNode& node, const std::string& path, JsonNode::Kind kind) {
    if (node.kind == kind) return true;
    Problem(node.position, path,
            fmt::format("wants {}, has {}{}{}", Describe(kind), Describe(node.kind),
                        ShortValue(node), Valid(path)));
    return false;
  }

  // " \"1.0\"", for people to find it by; nothing for what is long or has parts.
  static std::string ShortValue(const JsonNode& node) {
    constexpr size_t kMaxShown = 40;
    if (node.kind == JsonNode::Kind::kBool) return node.boolean ? ": true" : ": false";
    if (node.text.empty() || node.text.size() > kMaxShown) return "";
    if (node.kind == JsonNode::Kind::kNumber) return ": " + node.text;
    return node.kind == JsonNode::Kind::kString ? ": \"" + node.text + "\"" : "";
  }

  template <typename Int>
  bool Integer(const JsonNode& node, const std::string& path, Int* value) {
    if (!WantKind(node, path, JsonNode::Kind::kNumber)) return false;
    const char* end = node.text.data() + node.text.size();
    const auto [stop, error] = std::from_chars(node.text.data(), end, *value);
    if (error == std::errc() && stop == end) return true;
    const bool whole = node.text.find_first_of(".e") == std::string::npos;
    if (!whole) {
      Problem(node.position, path,
              fmt::format("wants an integer, has {}{}", node.text, Valid(path)));
    } else {
      Problem(
          node.position, path,
          fmt::format("{} is out of range{}", node.text,
                      Valid(path, fmt::format("; valid: {} to {}", std::numeric_limits<Int>::min(),
                                              std::numeric_limits<Int>::max()))));
    }
    return false;
  }

  bool Double(const JsonNode& node, const std::string& path, double largest, double* value) {
    if (!WantKind(node, path, JsonNode::Kind::kNumber)) return false;
    const char* end = node.text.data() + node.text.size();
    const auto [stop, error] = std::from_chars(node.text.data(), end, *value);
    if (error != std::errc() || stop != end || !std::isfinite(*value) ||
        std::fabs(*value) > largest) {
      Problem(node.position, path,
              fmt::format("{} is out of range{}", node.text, Valid(path, " of the type")));
      return false;
    }
    return true;
  }

  template <typename T, typename Set, typename Add>
  static void Store(Message* message, const FieldDescriptor* field, bool add, T value, Set set,
                    Add append) {
    const Reflection* reflection = message->GetReflection();
    if (add) {
      (reflection->*append)(message, field, value);
    } else {
      (reflection->*set)(message, field, value);
    }
  }

  void ReadValue(const JsonNode& node, const std::string& path, Message* message,
                 const FieldDescriptor* field, bool add);

  const std::string where_;
  ConfigOrigins* origins_;
  const ValidValues& valid_;
  ConfigProblems problems_;
};

void Reader::ReadValue(const JsonNode& node, const std::string& path, Message* message,
                       const FieldDescriptor* field, bool add) {
  const Reflection* r = message->GetReflection();
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      if (int32_t v = 0; Integer(node, path, &v)) {
        Store(message, field, add, v, &Reflection::SetInt32, &Reflection::AddInt32);
      }
      return;
    case FieldDescriptor::CPPTYPE_INT64:
      if (int64_t v = 0; Integer(node, path, &v)) {
        Store(message, field, add, v, &Reflection::SetInt64, &Reflection::AddInt64);
      }
      return;
    case FieldDescriptor::CPPTYPE_UINT32:
      if (uint32_t v = 0; Integer(node, path, &v)) {
        Store(message, field, add, v, &Reflection::SetUInt32, &Reflection::AddUInt32);
      }
      return;
    case FieldDescriptor::CPPTYPE_UINT64:
      if (uint64_t v = 0; Integer(node, path, &v)) {
        Store(message, field, add, v, &Reflection::SetUInt64, &Reflection::AddUInt64);
      }
      return;
    case FieldDescriptor::CPPTYPE_DOUBLE:
      if (double v = 0; Double(node, path, std::numeric_limits<double>::max(), &v)) {
        Store(message, field, add, v, &Reflection::SetDouble, &Reflection::AddDouble);
      }
      return;
    case FieldDescriptor::CPPTYPE_FLOAT:
      if (double v = 0; Double(node, path, std::numeric_limits<float>::max(), &v)) {
        Store(message, field, add, static_cast<float>(v), &Reflection::SetFloat,
              &Reflection::AddFloat);
      }
      return;
    case FieldDescriptor::CPPTYPE_BOOL:
      if (WantKind(node, path, JsonNode::Kind::kBool)) {
        Store(message, field, add, node.boolean, &Reflection::SetBool, &Reflection::AddBool);
      }
      return;
    case FieldDescriptor::CPPTYPE_STRING:
      if (field->type() == FieldDescriptor::TYPE_BYTES) {
        Problem(node.position, path, "bytes cannot be written in a config file");
      } else if (WantKind(node, path, JsonNode::Kind::kString)) {
        if (add) {
          r->AddString(message, field, node.text);
        } else {
          r->SetString(message, field, node.text);
        }
      }
      return;
    case FieldDescriptor::CPPTYPE_ENUM: {
      if (!WantKind(node, path, JsonNode::Kind::kString)) return;
      const auto* value = field->enum_type()->FindValueByName(node.text);
      if (value == nullptr) {
        std::vector<std::string> names;
        for (int i = 0; i < field->enum_type()->value_count(); ++i) {
          names.push_back(field->enum_type()->value(i)->name());
        }
        const std::string nearest = NearestName(node.text, names);
        Problem(node.position, path,
                fmt::format("is \"{}\"; {}valid: {}", node.text,
                            nearest.empty() ? "" : "did you mean \"" + nearest + "\"? ",
                            fmt::join(names, ", ")));
      } else if (add) {
        r->AddEnum(message, field, value);
      } else {
        r->SetEnum(message, field, value);
      }
      return;
    }
    case FieldDescriptor::CPPTYPE_MESSAGE:
      if (node.kind == JsonNode::Kind::kObject) {
        ReadMessage(node, path,
                    add ? r->AddMessage(message, field) : r->MutableMessage(message, field));
      } else {
        WantKind(node, path, JsonNode::Kind::kObject);
      }
      return;
  }
}

// Gives the field the lowest or highest value of its type, or the empty text. False: no such field,
// or another kind of field.
bool SetToAnEnd(const std::string& path, bool highest, Message* message) {
  const Reflection* r = message->GetReflection();
  const size_t dot = path.find('.');
  const FieldDescriptor* field = message->GetDescriptor()->FindFieldByName(path.substr(0, dot));
  if (field == nullptr || field->is_repeated()) return false;
  const bool leaf = dot == std::string::npos;
  if (leaf == (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE)) return false;
  if (!leaf) return SetToAnEnd(path.substr(dot + 1), highest, r->MutableMessage(message, field));
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_UINT32:
      r->SetUInt32(message, field, highest ? std::numeric_limits<uint32_t>::max() : 0);
      return true;
    case FieldDescriptor::CPPTYPE_UINT64:
      r->SetUInt64(message, field, highest ? std::numeric_limits<uint64_t>::max() : 0);
      return true;
    case FieldDescriptor::CPPTYPE_STRING:
      r->SetString(message, field, "");
      return true;
    default:  // no configuration of a daemon has others
      return false;
  }
}

}  // namespace

ConfigProblem InvalidValue(const std::string& path, const std::string& value,
                           const std::string& valid) {
  return {path, "is " + value + "; valid: " + valid, valid};
}

void AddProblems(ConfigProblems more, ConfigProblems* problems) {
  const auto speaks_of = [](const std::string& path, const std::string& about) {
    return !path.empty() && about.starts_with(path) &&
           (about.size() == path.size() || about[path.size()] == '.' || about[path.size()] == '[');
  };
  const size_t num_known = problems->size();
  for (ConfigProblem& problem : more) {
    const bool known = std::any_of(
        problems->begin(), problems->begin() + static_cast<ptrdiff_t>(num_known),
        [&](const ConfigProblem& earlier) {
          return speaks_of(earlier.path, problem.path) || speaks_of(earlier.meant, problem.path);
        });
    if (!known) problems->push_back(std::move(problem));
  }
}

ValidValues ValidByCheck(const Message& complete,
                         std::function<void(const Message&, ConfigProblems*)> check) {
  const std::shared_ptr<Message> kept(complete.New());
  kept->CopyFrom(complete);
  return [kept, check = std::move(check)](const std::string& path) -> std::string {
    for (const bool highest : {false, true}) {
      const std::unique_ptr<Message> tried(kept->New());
      tried->CopyFrom(*kept);
      if (!SetToAnEnd(path, highest, tried.get())) return "";
      ConfigProblems problems;
      check(*tried, &problems);
      for (const ConfigProblem& problem : problems) {
        if (problem.path == path && !problem.valid.empty()) return problem.valid;
      }
    }
    return "";
  };
}

void ConfigOrigins::SetFromFile(const std::string& path, const std::string& where,
                                JsonPosition position) {
  origins_[path] = Place(where, position);
}

void ConfigOrigins::SetFromFlag(const std::string& path, const std::string& flag) {
  origins_[path] = "flag " + flag;
}

std::string ConfigOrigins::Of(const std::string& path) const {
  const auto at = origins_.find(path);
  return at == origins_.end() ? "default" : at->second;
}

Status ReadConfigText(std::string_view text, const std::string& where, Message* message,
                      ConfigOrigins* origins, const ValidValues& valid) {
  TITAN_ASSIGN_OR_RETURN(const JsonNode root, ParseJsonTree(text, where));
  return ReadConfigTree(root, where, message, origins, valid);
}

Status ReadConfigFile(const std::string& file, Message* message, ConfigOrigins* origins,
                      const ValidValues& valid, ConfigProblems* problems) {
  const StatusOr<std::string> text = runtime::ReadFile(file, 16u << 20);
  if (!text.ok()) return InvalidArgument("configuration: " + MessageOf(text.status()));
  TITAN_ASSIGN_OR_RETURN(const JsonNode root, ParseJsonTree(*text, file));
  Reader reader(file, origins, valid);
  reader.ReadMessage(root, "", message);
  AddProblems(reader.TakeProblems(), problems);
  return OkStatus();
}

Status ReadConfigFile(const std::string& file, Message* message, ConfigOrigins* origins,
                      const ValidValues& valid) {
  ConfigProblems problems;
  TITAN_RETURN_IF_ERROR(ReadConfigFile(file, message, origins, valid, &problems));
  return ProblemsToStatus(problems, *origins);
}

Status ReadConfigTree(const JsonNode& root, const std::string& where, Message* message,
                      ConfigOrigins* origins, const ValidValues& valid) {
  Reader reader(where, origins, valid);
  reader.ReadMessage(root, "", message);
  return ProblemsToStatus(reader.TakeProblems(), *origins);
}

Status SetConfigValue(const std::string& assignment, const std::string& flag, Message* message,
                      ConfigOrigins* origins, const ValidValues& valid) {
  const size_t equals = assignment.find('=');
  const std::string path = assignment.substr(0, equals);
  if (equals == std::string::npos || path.empty() || path.front() == '.' || path.back() == '.' ||
      path.find("..") != std::string::npos) {
    return InvalidArgument(flag + " " + assignment + ": wants path=value, for example " + flag +
                           " training.learning_rate=2e-6");
  }
  const std::string where = flag + " " + assignment;
  const std::string value = assignment.substr(equals + 1);
  std::vector<std::string> names;
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    names.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  // Bare text is what people write for a string field, so that is what it means there.
  const Descriptor* descriptor = message->GetDescriptor();
  const FieldDescriptor* field = nullptr;
  for (const std::string& name : names) {
    field = descriptor == nullptr ? nullptr : descriptor->FindFieldByName(name);
    descriptor = field == nullptr ? nullptr : field->message_type();
  }
  JsonNode node;
  const bool is_text = field != nullptr && !field->is_repeated() &&
                       field->cpp_type() == FieldDescriptor::CPPTYPE_STRING;
  const auto as_text = [&] {
    node.kind = JsonNode::Kind::kString;
    node.text = value;
  };
  if (is_text && !value.starts_with('"')) {
    as_text();
  } else if (auto parsed = ParseJsonTree(value, where); parsed.ok()) {
    node = *std::move(parsed);
  } else if (value.starts_with('{') || value.starts_with('[') || value.starts_with('"')) {
    return Annotate(parsed.status(), path);  // meant as JSON
  } else {
    as_text();  // what the field wants instead is said below
  }
  for (size_t i = names.size(); i-- > 0;) {
    JsonNode parent;
    parent.kind = JsonNode::Kind::kObject;
    parent.members.push_back({names[i], {0, 0}, std::move(node)});
    node = std::move(parent);
  }
  const std::function<void(JsonNode*)> forget_places = [&](JsonNode* n) {
    n->position = {0, 0};
    for (JsonNode& item : n->items) forget_places(&item);
    for (JsonNode::Member& member : n->members) forget_places(&member.value);
  };
  forget_places(&node);
  return ReadConfigTree(node, where, message, origins, valid);
}

Status ProblemsToStatus(const ConfigProblems& problems, const ConfigOrigins& origins) {
  if (problems.empty()) return OkStatus();
  std::string text;
  for (const ConfigProblem& problem : problems) {
    if (!text.empty()) text += "\n";
    // What is missing has the place of the object that lacks it.
    std::string at = problem.path;
    while (!at.empty() && origins.IsDefault(at)) {
      const size_t cut = at.find_last_of(".[");
      at.resize(cut == std::string::npos ? 0 : cut);
    }
    if (!origins.IsDefault(at)) text += origins.Of(at) + ": ";
    text += (problem.path.empty() ? "" : problem.path + ": ") + problem.description;
  }
  return InvalidArgument(text);
}

}  // namespace titan::rpc
