#include "data/pre_tokenizer.hpp"

#include <fmt/format.h>

#include <optional>

#include "data/normalizer.hpp"
#include "data/unicode.hpp"

namespace ranktune::data::tokenizing {
namespace {

// GPT-2's pattern, which a ByteLevel pre-tokenizer uses unless it says otherwise.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

}  // namespace

// Takes matches and the text between them in order, and hands on pieces as the behaviour says.
class PreTokenizer::Splitter {
 public:
  explicit Splitter(Behavior behavior) : behavior_(behavior) {}

  template <typename Emit>
  void take(Span span, bool is_match, Emit&& emit) {
    switch (behavior_) {
      case Behavior::removed:
        if (!is_match) emit(span);
        break;
      case Behavior::isolated:
        emit(span);
        break;
      case Behavior::contiguous:
        hold(span, is_match == previous_, emit);
        break;
      case Behavior::merged_with_previous:
        hold(span, is_match && !previous_, emit);
        break;
      case Behavior::merged_with_next:
        hold(span, !is_match && previous_, emit);
        break;
    }
    previous_ = is_match;
  }

  template <typename Emit>
  void finish(Emit&& emit) {
    if (held_) emit(*held_);
  }

 private:
  // Extends the piece held back, or hands it on and holds this one.
  template <typename Emit>
  void hold(Span span, bool extends, Emit& emit) {
    if (extends && held_) {
      held_->end = span.end;
      return;
    }
    if (held_) emit(*held_);
    held_ = span;
  }

  Behavior behavior_;
  std::optional<Span> held_;
  bool previous_ = false;
};

// One pass through the stages, depth first, so that each stage needs one set of buffers.
struct PreTokenizer::Run {
  const PreTokenizer& owner;
  Scratch& scratch;
  RegexScratch& regex;
  const Sink& sink;

  void from(std::size_t stage, Piece piece) const {
    if (piece.text.empty()) return;
    if (stage == owner.stages_.size()) return sink(piece.text);
    std::visit([&](const auto& step) { apply(step, stage, piece); }, owner.stages_[stage]);
  }

  void apply(const Split& step, std::size_t stage, Piece piece) const {
    Splitter splitter(step.behavior);
    const auto emit = [&](Span span) { from(stage + 1, piece.part(span)); };
    step.pattern.for_each_part(piece.text, regex, [&](Span span, bool is_match) {
      splitter.take(span, is_match != step.invert, emit);
    });
    splitter.finish(emit);
  }

  void apply(const ByteLevel& step, std::size_t stage, Piece piece) const {
    auto& buffers = scratch.buffers_[stage];
    if (step.add_prefix_space && !piece.text.starts_with(' ')) {
      buffers.prefixed.assign(1, ' ').append(piece.text);
      piece.text = buffers.prefixed;
    }
    const auto emit = [&](Piece part) {
      if (step.map_bytes) {
        buffers.mapped.clear();
        append_byte_level(buffers.mapped, part.text);
        part.text = buffers.mapped;
      }
      from(stage + 1, part);
    };
    if (!step.pattern) return emit(piece);
    step.pattern->for_each_part(piece.text, regex, [&](Span span, bool) {
      if (span.begin < span.end) emit(piece.part(span));
    });
  }

  void apply(const Metaspace& step, std::size_t stage, Piece piece) const {
    std::string& text = scratch.buffers_[stage].prefixed;
    text.clear();
    for (const char c : piece.text) c == ' ' ? text.append(step.replacement) : text.append(1, c);
    const bool prepend =
        step.prepend == Prepend::always || (step.prepend == Prepend::first && piece.at_origin);
    if (prepend && !text.starts_with(step.replacement)) text.insert(0, step.replacement);
    piece.text = text;
    if (!step.split) return from(stage + 1, piece);
    // A piece begins at each replacement character.
    for (std::size_t begin = 0; begin < text.size();) {
      std::size_t end =
          text.find(step.replacement,
                    begin == 0 && !text.starts_with(step.replacement) ? 0 : begin + step.replacement.size());
      if (end == std::string::npos) end = text.size();
      from(stage + 1, piece.part({begin, end}));
      begin = end;
    }
  }

  void apply(const Digits& step, std::size_t stage, Piece piece) const {
    Splitter splitter(step.individual ? Behavior::isolated : Behavior::contiguous);
    const auto emit = [&](Span span) { from(stage + 1, piece.part(span)); };
    std::size_t done = 0;
    for (std::size_t position = 0; position < piece.text.size();) {
      const std::size_t begin = position;
      if (!is_numeric(next_code_point(piece.text, position))) continue;
      if (done < begin) splitter.take({done, begin}, false, emit);
      splitter.take({begin, position}, true, emit);
      done = position;
    }
    if (done < piece.text.size()) splitter.take({done, piece.text.size()}, false, emit);
    splitter.finish(emit);
  }
};

void PreTokenizer::run(std::string_view text, bool at_origin, Scratch& scratch, RegexScratch& regex,
                       const Sink& sink) const {
  Run{*this, scratch, regex, sink}.from(0, {text, at_origin});
}

bool PreTokenizer::ends_in_byte_level() const {
  if (stages_.empty()) return false;
  for (std::size_t i = 0; i < stages_.size(); ++i) {
    const auto* step = std::get_if<ByteLevel>(&stages_[i]);
    const bool maps = step != nullptr && step->map_bytes;
    if (maps != (i + 1 == stages_.size())) return false;
  }
  return true;
}

void PreTokenizer::leave_bytes() {
  std::get<ByteLevel>(stages_.back()).map_bytes = false;
}

void PreTokenizer::add_split(const JsonPart& part) {
  constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", Behavior::removed},
      {"Isolated", Behavior::isolated},
      {"MergedWithPrevious", Behavior::merged_with_previous},
      {"MergedWithNext", Behavior::merged_with_next},
      {"Contiguous", Behavior::contiguous}};
  const std::string name = part.text("behavior");
  for (const auto& [known, behavior] : kBehaviors) {
    if (known != name) continue;
    stages_.emplace_back(Split{Pattern(part.child("pattern")), behavior, part.flag("invert")});
    return;
  }
  part.refuse(fmt::format("has the behavior \"{}\", which is not supported", name));
}

void PreTokenizer::add_metaspace(const JsonPart& part) {
  const std::string scheme = part.has("prepend_scheme") ? part.text("prepend_scheme") : "always";
  if (scheme != "first" && scheme != "always" && scheme != "never") {
    part.refuse(fmt::format("has the prepend_scheme \"{}\", which is not supported", scheme));
  }
  if (!part.flag("add_prefix_space", true) && scheme != "never") {
    part.refuse(
        fmt::format("has add_prefix_space false and prepend_scheme \"{}\", which contradict", scheme));
  }
  const Prepend prepend = scheme == "first"    ? Prepend::first
                          : scheme == "always" ? Prepend::always
                                               : Prepend::never;
  stages_.emplace_back(Metaspace{part.character("replacement"), prepend, part.flag("split", true)});
}

void PreTokenizer::add(const JsonPart& part) {
  const std::string type = part.type();
  if (type == "Sequence") {
    for (const JsonPart& stage : part.children("pretokenizers")) add(stage);
  } else if (type == "Split") {
    add_split(part);
  } else if (type == "ByteLevel") {
    std::optional<Pattern> pattern;
    if (part.flag("use_regex", true)) pattern.emplace(Regex(kGpt2Pattern));
    stages_.emplace_back(ByteLevel{part.flag("add_prefix_space"), std::move(pattern)});
  } else if (type == "Metaspace") {
    add_metaspace(part);
  } else if (type == "Digits") {
    stages_.emplace_back(Digits{part.flag("individual_digits")});
  } else {
    part.refuse(fmt::format("is a {} pre-tokenizer, which is not supported", type));
  }
}

}  // namespace ranktune::data::tokenizing
