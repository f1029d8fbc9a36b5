#include "data/tokenizer_regex.hpp"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <fmt/format.h>
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <new>

#include "base/error.hpp"

namespace ranktune::data::tokenizing {
namespace {

constexpr std::size_t kFirstJitStack = 32 * 1024;
constexpr std::size_t kLargestJitStack = 64 * 1024 * 1024;

// The newline convention and limits that every pattern is compiled with.
pcre2_code_8* compile(const std::string& translated, std::string& error) {
  const std::unique_ptr<pcre2_compile_context_8, void (*)(pcre2_compile_context_8*)> context(
      pcre2_compile_context_create_8(nullptr), pcre2_compile_context_free_8);
  if (!context) throw std::bad_alloc();
  pcre2_set_newline_8(context.get(), PCRE2_NEWLINE_LF);
  int code = 0;
  std::size_t offset = 0;
  // MULTILINE: Oniguruma's ^ and $ always mean lines.
  pcre2_code_8* compiled = pcre2_compile_8(
      reinterpret_cast<PCRE2_SPTR8>(translated.data()), translated.size(),
      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context.get());
  if (compiled == nullptr) {
    std::array<unsigned char, 256> text{};
    pcre2_get_error_message_8(code, text.data(), text.size());
    error = fmt::format("PCRE2 says: {}", reinterpret_cast<const char*>(text.data()));
  }
  return compiled;
}

}  // namespace

RegexScratch::RegexScratch()
    : data_(pcre2_match_data_create_8(1, nullptr)),
      context_(pcre2_match_context_create_8(nullptr)),
      stack_(pcre2_jit_stack_create_8(kFirstJitStack, kLargestJitStack, nullptr)) {
  if (data_ == nullptr || context_ == nullptr) throw std::bad_alloc();
  pcre2_set_match_limit_8(context_, UINT32_MAX);  // a line of ten megabytes backtracks often
  if (stack_ != nullptr) pcre2_jit_stack_assign_8(context_, nullptr, stack_);
}

RegexScratch::~RegexScratch() {
  pcre2_jit_stack_free_8(stack_);
  pcre2_match_context_free_8(context_);
  pcre2_match_data_free_8(data_);
}

void Regex::Free::operator()(pcre2_code_8* code) const {
  pcre2_code_free_8(code);
}

Regex::Regex(std::string_view oniguruma_pattern) : pattern_(oniguruma_pattern) {
  std::string error;
  code_.reset(compile(pcre_from_oniguruma(oniguruma_pattern), error));
  if (!code_) throw UserError(error);
  compiled_to_machine_code_ = pcre2_jit_compile_8(code_.get(), PCRE2_JIT_COMPLETE) == 0;
}

std::optional<Span> Regex::search(std::string_view text, std::size_t from, RegexScratch& scratch) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR8>(text.data() == nullptr ? "" : text.data());
  const auto match = compiled_to_machine_code_ ? pcre2_jit_match_8 : pcre2_match_8;
  const std::uint32_t options = compiled_to_machine_code_ ? 0 : PCRE2_NO_UTF_CHECK;
  const int result = match(code_.get(), subject, text.size(), from, options, scratch.data_, scratch.context_);
  if (result == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (result < 0) {
    std::array<unsigned char, 256> message{};
    pcre2_get_error_message_8(result, message.data(), message.size());
    throw Failure(fmt::format("the tokenizer's pattern {} gave up on a text of {} bytes: {}", pattern_,
                              text.size(), reinterpret_cast<const char*>(message.data())));
  }
  const std::size_t* bounds = pcre2_get_ovector_pointer_8(scratch.data_);
  return Span{bounds[0], bounds[1]};
}

Pattern::Pattern(const JsonPart& part) {
  if (part.has("String")) {
    literal_ = part.text("String");
    if (literal_.empty()) regex_.emplace("");
    return;
  }
  if (!part.has("Regex")) part.refuse("is neither a \"String\" nor a \"Regex\"");
  const std::string pattern = part.text("Regex");
  try {
    regex_.emplace(pattern);
  } catch (const UserError& error) {
    part.refuse(fmt::format("\"{}\" is not supported: {}", pattern, error.what()));
  }
}

std::optional<Span> Pattern::search(std::string_view text, std::size_t from, RegexScratch& scratch) const {
  if (regex_) return regex_->search(text, from, scratch);
  const std::size_t begin = text.find(literal_, from);
  if (begin == std::string_view::npos) return std::nullopt;
  return Span{begin, begin + literal_.size()};
}

}  // namespace ranktune::data::tokenizing
