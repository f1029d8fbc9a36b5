#include "data/normalizer.hpp"

#include <fmt/format.h>

#include <array>

namespace ranktune::data::tokenizing {
namespace {

// Printable Latin-1 bytes stand for themselves, the others for U+0100 and on, in order (Radford et al.,
// GPT-2).
constexpr bool stands_for_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr std::array<char32_t, 256> make_byte_characters() {
  std::array<char32_t, 256> characters{};
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    characters[byte] = stands_for_itself(byte) ? static_cast<char32_t>(byte) : next++;
  }
  return characters;
}

constexpr std::array<char32_t, 256> kByteCharacters = make_byte_characters();
constexpr char32_t kByteCharactersEnd = 0x144;

constexpr std::array<int, kByteCharactersEnd> make_character_bytes() {
  std::array<int, kByteCharactersEnd> bytes{};
  for (int& byte : bytes) byte = -1;
  for (int byte = 0; byte < 256; ++byte) bytes[kByteCharacters[byte]] = byte;
  return bytes;
}

constexpr std::array<int, kByteCharactersEnd> kCharacterBytes = make_character_bytes();

std::size_t white_space_before(std::string_view text) {
  std::size_t end = 0;
  for (std::size_t next = 0; next < text.size();) {
    if (!is_white_space(next_code_point(text, next))) break;
    end = next;
  }
  return end;
}

std::size_t end_without_white_space(std::string_view text) {
  std::size_t end = text.size();
  while (end > 0) {
    std::size_t position = previous_character(text, end);
    const std::size_t begin = position;
    if (!is_white_space(next_code_point(text, position))) break;
    end = begin;
  }
  return end;
}

}  // namespace

char32_t byte_level_character(unsigned char byte) {
  return kByteCharacters[byte];
}

void append_byte_level(std::string& out, std::string_view text) {
  for (const char byte : text) append_utf8(out, kByteCharacters[static_cast<unsigned char>(byte)]);
}

std::optional<unsigned char> byte_of_byte_level(char32_t code_point) {
  if (code_point >= kByteCharactersEnd || kCharacterBytes[code_point] < 0) return std::nullopt;
  return static_cast<unsigned char>(kCharacterBytes[code_point]);
}

void Normalizer::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& step : part.children("normalizers")) add(step);
  } else if (type == "NFC") {
    steps_.emplace_back(NormalForm::nfc);
  } else if (type == "NFD") {
    steps_.emplace_back(NormalForm::nfd);
  } else if (type == "NFKC") {
    steps_.emplace_back(NormalForm::nfkc);
  } else if (type == "NFKD") {
    steps_.emplace_back(NormalForm::nfkd);
  } else if (type == "Prepend") {
    steps_.emplace_back(Prepend{part.text("prepend")});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{Pattern(part.child("pattern")), part.text("content")});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{part.flag("strip_left"), part.flag("strip_right")});
  } else if (type == "Lowercase") {
    steps_.emplace_back(Lowercase{});
  } else if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
  } else {
    part.refuse(fmt::format("is a {} normalizer, which is not supported", type));
  }
}

void Normalizer::apply(std::string& text, bool& at_origin, RegexScratch& scratch) const {
  struct Apply {
    std::string& text;
    bool& at_origin;
    RegexScratch& scratch;

    void operator()(NormalForm form) const {
      std::string out;
      out.reserve(text.size());
      append_normalized(out, text, form);
      text.swap(out);
    }
    void operator()(const Prepend& step) const {
      if (!text.empty()) text.insert(0, step.text);
    }
    void operator()(const Replace& step) const {
      std::string out;
      out.reserve(text.size() + text.size() / 2);
      step.pattern.for_each_part(text, scratch, [&](Span span, bool is_match) {
        out += is_match ? std::string_view(step.content)
                        : std::string_view(text).substr(span.begin, span.end - span.begin);
        if (is_match && span.begin == 0 && span.end > 0 && step.content.empty()) at_origin = false;
      });
      text.swap(out);
    }
    void operator()(const Strip& step) const {
      if (step.right) text.resize(end_without_white_space(text));
      if (!step.left) return;
      const std::size_t begin = white_space_before(text);
      if (begin > 0) at_origin = false;
      text.erase(0, begin);
    }
    void operator()(Lowercase) const {
      std::string out;
      out.reserve(text.size());
      for (std::size_t position = 0; position < text.size();) {
        append_lowercase(out, next_code_point(text, position));
      }
      text.swap(out);
    }
    void operator()(ByteLevel) const {
      std::string out;
      append_byte_level(out, text);
      text.swap(out);
    }
  };
  for (const Step& step : steps_) std::visit(Apply{text, at_origin, scratch}, step);
}

}  // namespace ranktune::data::tokenizing
