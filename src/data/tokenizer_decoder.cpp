#include "data/tokenizer_decoder.hpp"

#include <fmt/format.h>

#include <charconv>

#include "data/normalizer.hpp"
#include "data/unicode.hpp"

namespace ranktune::data::tokenizing {
namespace {

// The byte of a <0xNN> token.
std::optional<char> fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned value = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (error != std::errc{} || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(value);
}

// A run of byte tokens is text where it is UTF-8, otherwise one U+FFFD for each byte.
void flush_bytes(std::string& bytes, std::vector<std::string>& out) {
  if (bytes.empty()) return;
  if (!first_invalid_utf8(bytes)) {
    out.push_back(bytes);
  } else {
    for (std::size_t i = 0; i < bytes.size(); ++i) out.emplace_back("\xEF\xBF\xBD");
  }
  bytes.clear();
}

void append_bytes_of(std::string& out, const std::string& token) {
  std::string bytes;
  for (std::size_t position = 0; position < token.size();) {
    const auto byte = byte_of_byte_level(next_code_point(token, position));
    if (!byte) {
      out += token;  // not made of stand-ins: an added token, say
      return;
    }
    bytes.push_back(static_cast<char>(*byte));
  }
  out += bytes;
}

}  // namespace

struct Decoder::Apply {
  std::vector<std::string>& tokens;
  RegexScratch& scratch;

  void operator()(ByteLevel) const {
    std::string bytes;
    for (const std::string& token : tokens) append_bytes_of(bytes, token);
    std::string text;
    append_utf8_lossy(text, bytes);
    tokens.assign(1, text);
  }
  void operator()(ByteFallback) const {
    std::vector<std::string> out;
    std::string bytes;
    for (std::string& token : tokens) {
      if (const auto byte = fallback_byte(token)) {
        bytes.push_back(*byte);
        continue;
      }
      flush_bytes(bytes, out);
      out.push_back(std::move(token));
    }
    flush_bytes(bytes, out);
    tokens.swap(out);
  }
  void operator()(Fuse) const {
    std::string text;
    for (const std::string& token : tokens) text += token;
    tokens.assign(1, text);
  }
  void operator()(const Strip& step) const {
    for (std::string& token : tokens) {
      std::size_t begin = 0;
      for (std::size_t i = 0; i < step.start; ++i) {
        if (token.compare(begin, step.content.size(), step.content) != 0) break;
        begin += step.content.size();
      }
      token.erase(0, begin);
      for (std::size_t i = 0; i < step.stop && token.ends_with(step.content); ++i) {
        token.resize(token.size() - step.content.size());
      }
    }
  }
  void operator()(const Replace& step) const {
    for (std::string& token : tokens) {
      std::string out;
      step.pattern.for_each_part(token, scratch, [&](Span span, bool is_match) {
        out += is_match ? step.content : token.substr(span.begin, span.end - span.begin);
      });
      token.swap(out);
    }
  }
  void operator()(const Metaspace& step) const {
    bool drops = step.drops_first;
    for (std::string& token : tokens) {
      std::string out;
      for (std::size_t at = 0; at < token.size();) {
        if (token.compare(at, step.replacement.size(), step.replacement) == 0) {
          if (!drops) out += ' ';
          at += step.replacement.size();
        } else {
          out += token[at++];
        }
      }
      drops = false;
      token.swap(out);
    }
  }
};

void Decoder::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& step : part.children("decoders")) add(step);
  } else if (type == "ByteLevel") {
    steps_.emplace_back(ByteLevel{});
  } else if (type == "ByteFallback") {
    steps_.emplace_back(ByteFallback{});
  } else if (type == "Fuse") {
    steps_.emplace_back(Fuse{});
  } else if (type == "Strip") {
    steps_.emplace_back(Strip{part.character("content"), part.count("start"), part.count("stop")});
  } else if (type == "Replace") {
    steps_.emplace_back(Replace{Pattern(part.child("pattern")), part.text("content")});
  } else if (type == "Metaspace") {
    const std::string scheme = part.has("prepend_scheme") ? part.text("prepend_scheme") : "always";
    steps_.emplace_back(Metaspace{part.character("replacement"), scheme != "never"});
  } else {
    part.refuse(fmt::format("is a {} decoder, which is not supported", type));
  }
}

std::string Decoder::decode(std::vector<std::string> tokens, RegexScratch& scratch) const {
  for (const Step& step : steps_) std::visit(Apply{tokens, scratch}, step);
  std::string text;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (!present_ && i > 0) text += ' ';
    text += tokens[i];
  }
  return text;
}

}  // namespace ranktune::data::tokenizing
