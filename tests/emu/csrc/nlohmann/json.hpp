// What torch's FlightRecorderDetail.hpp uses of nlohmann's json, which torch does not ship: values go in, text comes out.
#pragma once

#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <tuple>
#include <type_traits>

namespace nlohmann {

class json {
 public:
  json() = default;
  template <typename T>
  json(const T& value) : text_(text(value)) {}
  json(const json&) = default;
  json& operator=(const json&) = default;

  json& operator[](const std::string& key) {
    return members_[key];
  }

  std::string dump() const {
    if (members_.empty()) {
      return text_.empty() ? "null" : text_;
    }
    return object(members_);
  }

 private:
  static std::string quoted(const std::string& value) {
    std::string result = "\"";
    for (const char each : value) {
      if (each == '"' || each == '\\') {
        result += '\\';
      }
      if (static_cast<unsigned char>(each) < 0x20) {
        char escaped[8];
        std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(each));
        result += escaped;
      } else {
        result += each;
      }
    }
    return result + '"';
  }

  template <typename Map>
  static std::string object(const Map& map) {
    std::string result;
    for (const auto& [key, value] : map) {
      result += (result.empty() ? "{" : ",") + quoted(key) + ":" + text(value);
    }
    return result.empty() ? "{}" : result + "}";
  }

  static std::string text(const json& value) {
    return value.dump();
  }
  static std::string text(const std::string& value) {
    return quoted(value);
  }
  static std::string text(const std::tuple<std::string, std::string>& value) {
    return "[" + quoted(std::get<0>(value)) + "," + quoted(std::get<1>(value)) + "]";
  }
  template <typename T>
  static std::string text(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      return value ? "true" : "false";
    } else if constexpr (std::is_arithmetic_v<T>) {
      return std::to_string(value);
    } else {
      return container(value, 0);
    }
  }
  template <typename Map>
  static auto container(const Map& map, int) -> decltype(typename Map::mapped_type(), std::string()) {
    return object(map);
  }
  template <typename List>
  static std::string container(const List& list, long) {
    std::string result;
    for (const auto& each : list) {
      result += (result.empty() ? "[" : ",") + text(each);
    }
    return result.empty() ? "[]" : result + "]";
  }

  std::map<std::string, json> members_;
  std::string text_;
};

} // namespace nlohmann
