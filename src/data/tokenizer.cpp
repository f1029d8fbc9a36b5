#include "data/tokenizer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/error.hpp"
#include "base/file.hpp"
#include "data/bpe.hpp"
#include "data/normalizer.hpp"
#include "data/pre_tokenizer.hpp"
#include "data/tokenizer_added_tokens.hpp"
#include "data/tokenizer_decoder.hpp"
#include "data/tokenizer_json.hpp"
#include "data/tokenizer_part.hpp"
#include "data/tokenizer_post_processor.hpp"
#include "data/tokenizer_regex.hpp"
#include "data/unicode.hpp"

namespace ranktune::data {
namespace {

using nlohmann::json;
using namespace tokenizing;

constexpr std::size_t kLongestText = std::size_t{1} << 30;

// Everything that encoding one text writes to.
struct Context {
  explicit Context(const PreTokenizer& pre_tokenizer) : pre_tokenizing(pre_tokenizer) {}
  RegexScratch regex;
  PreTokenizer::Scratch pre_tokenizing;
  Bpe::Scratch bpe;
  std::string normalized;
};

// Contexts in use by nobody, so that caches outlive a call without belonging to a thread.
class ContextPool {
 public:
  explicit ContextPool(const PreTokenizer& pre_tokenizer) : pre_tokenizer_(pre_tokenizer) {}

  std::unique_ptr<Context> take() {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return std::make_unique<Context>(pre_tokenizer_);
    std::unique_ptr<Context> context = std::move(idle_.back());
    idle_.pop_back();
    return context;
  }
  void give_back(std::unique_ptr<Context> context) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(context));
  }

 private:
  const PreTokenizer& pre_tokenizer_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Context>> idle_;
};

struct Parts {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  PostProcessor post_processor;
  Decoder decoder;
  AddedTokens added;
  std::optional<Bpe> bpe;
};

BpeOptions read_bpe_options(const JsonPart& model) {
  if (model.has("type") && model.type() != "BPE") {
    model.refuse(fmt::format("is a {} model; only BPE is supported", model.type()));
  }
  if (model.has("dropout") && model.value().at("dropout") != 0.0) {
    model.refuse(fmt::format("has dropout {}, which is not supported", model.value().at("dropout").dump()));
  }
  BpeOptions options;
  if (model.has("unk_token")) options.unk_token = model.text("unk_token");
  if (model.has("continuing_subword_prefix")) {
    options.continuing_subword_prefix = model.text("continuing_subword_prefix");
  }
  if (model.has("end_of_word_suffix")) options.end_of_word_suffix = model.text("end_of_word_suffix");
  options.fuse_unk = model.flag("fuse_unk", false);
  options.byte_fallback = model.flag("byte_fallback", false);
  options.ignore_merges = model.flag("ignore_merges", false);
  return options;
}

Bpe make_bpe(TokenizerJson& parsed, const JsonPart& model) {
  const BpeOptions options = read_bpe_options(model);
  if (!parsed.has_vocabulary) model.refuse("has no \"vocab\" object");
  if (!parsed.has_merges) model.refuse("has no \"merges\" array");
  if (parsed.vocabulary.size() == 0) model.refuse("has an empty \"vocab\"");
  try {
    return Bpe(std::move(parsed.vocabulary), parsed.merges, options);
  } catch (const UserError& error) {
    model.refuse(fmt::format("is wrong: {}", error.what()));
  }
}

// Padding and truncation are left out of account, as Transformers does: it sets its own at each call.
void check_top_level(const JsonPart& root) {
  constexpr std::string_view kKnown[] = {"version",        "truncation", "padding",
                                         "added_tokens",   "normalizer", "pre_tokenizer",
                                         "post_processor", "decoder",    "model"};
  if (!root.value().is_object()) root.refuse("is not a JSON object");
  for (const auto& [key, value] : root.value().items()) {
    if (std::ranges::find(kKnown, key) == std::end(kKnown)) {
      root.refuse(fmt::format("has the part \"{}\", which is not supported", key));
    }
  }
  if (root.has("version") && root.text("version") != "1.0") {
    root.refuse(fmt::format("has the version \"{}\"; only 1.0 is supported", root.text("version")));
  }
}

Parts read_parts(TokenizerJson& parsed, const std::string& file) {
  const JsonPart root(parsed.rest, file, "tokenizer");
  check_top_level(root);
  Parts parts;
  parts.bpe.emplace(make_bpe(parsed, root.child("model")));
  if (root.has("normalizer")) parts.normalizer = Normalizer(root.child("normalizer"));
  if (root.has("pre_tokenizer")) parts.pre_tokenizer = PreTokenizer(root.child("pre_tokenizer"));
  if (root.has("post_processor")) parts.post_processor = PostProcessor(root.child("post_processor"));
  if (root.has("decoder")) parts.decoder = Decoder(root.child("decoder"));
  if (root.has("added_tokens")) {
    parts.added = AddedTokens(root.children("added_tokens"), parts.bpe->vocabulary());
  }
  return parts;
}

json read_optional_json(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) return json::object();
  try {
    json value = json::parse(read_file(path));
    if (value.is_object()) return value;
  } catch (const json::exception& error) {
    throw UserError(fmt::format("{} is not valid JSON: {}", path.string(), error.what()));
  }
  throw UserError(fmt::format("{} is not a JSON object", path.string()));
}

// A token of tokenizer_config.json or special_tokens_map.json: a string, or an object with its "content".
std::optional<std::string> configured_token(const json& config, const std::filesystem::path& path,
                                            const char* name) {
  const auto found = config.find(name);
  if (found == config.end() || found->is_null()) return std::nullopt;
  const json& value = *found;
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  throw UserError(
      fmt::format("{}: {} must be a string, or an object with a string \"content\"", path.string(), name));
}

struct SpecialTokens {
  std::optional<std::string> eos, bos;
};

SpecialTokens read_special_tokens(const std::filesystem::path& folder) {
  SpecialTokens tokens;
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::filesystem::path path = folder / name;
    const json config = read_optional_json(path);
    if (!tokens.eos) tokens.eos = configured_token(config, path, "eos_token");
    if (!tokens.bos) tokens.bos = configured_token(config, path, "bos_token");
    if (tokens.eos) break;
  }
  return tokens;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(Parts read, std::string file, SpecialTokens tokens, std::string hash)
      : parts(std::move(read)), special(std::move(tokens)), digest(std::move(hash)) {
    for (const auto& token : {special.eos, special.bos}) add_special(file, token);
    try {
      parts.added.finish(parts.normalizer);
    } catch (const UserError& error) {
      throw UserError(fmt::format("{}: {}", file, error.what()));
    }
    raw_bytes = parts.pre_tokenizer.ends_in_byte_level() && parts.bpe->knows_all_bytes();
    if (raw_bytes) parts.pre_tokenizer.leave_bytes();
  }

  // As Transformers does, a configured token is found in texts even if tokenizer.json lists it in the
  // vocabulary only.
  void add_special(const std::string& file, const std::optional<std::string>& token) {
    if (!token || token->empty() || parts.added.find(*token) != nullptr) return;
    const auto id = parts.bpe->vocabulary().find(*token);
    if (!id)
      throw UserError(fmt::format("{} has no token \"{}\", which tokenizer_config.json names", file, *token));
    parts.added.add_special(*token, *id);
  }

  void encode_text(std::string_view text, bool at_origin, Context& context,
                   std::vector<std::int32_t>& out) const;
  void encode_words(std::string_view text, bool at_origin, Context& context,
                    std::vector<std::int32_t>& out) const;

  Parts parts;
  SpecialTokens special;
  std::string digest;
  bool raw_bytes = false;  // words come as bytes, without the detour over their stand-ins
  mutable ContextPool pool{parts.pre_tokenizer};
};

void Tokenizer::Impl::encode_words(std::string_view text, bool at_origin, Context& context,
                                   std::vector<std::int32_t>& out) const {
  parts.pre_tokenizer.run(text, at_origin, context.pre_tokenizing, context.regex, [&](std::string_view word) {
    raw_bytes ? parts.bpe->encode_bytes(word, context.bpe, out) : parts.bpe->encode(word, context.bpe, out);
  });
}

// A piece between the added tokens that are looked for in the text as it came.
void Tokenizer::Impl::encode_text(std::string_view text, bool at_origin, Context& context,
                                  std::vector<std::int32_t>& out) const {
  if (!parts.normalizer.empty()) {
    context.normalized.assign(text);
    parts.normalizer.apply(context.normalized, at_origin, context.regex);
    text = context.normalized;
  }
  parts.added.split(
      text, true,
      [&](std::string_view piece, bool at_begin) {
        encode_words(piece, at_origin && at_begin, context, out);
      },
      [&](std::int32_t id) { out.push_back(id); });
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / "tokenizer.json";
  if (!std::filesystem::exists(path)) {
    throw UserError(fmt::format("{} is missing: a model folder must hold a tokenizer.json", path.string()));
  }
  const MappedFile file(path);
  TokenizerJson parsed = parse_tokenizer_json(file.text(), path.string());
  SpecialTokens special = read_special_tokens(folder);
  const std::string digest =
      content_hash(fmt::format("{}\n{}\n{}", content_hash(file.text()), json(special.eos.value_or("")).dump(),
                               json(special.bos.value_or("")).dump()));
  return Tokenizer(std::make_unique<Impl>(read_parts(parsed, path.string()), path.string(), special, digest));
}

std::vector<std::int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (text.size() > kLongestText) {
    throw UserError(fmt::format("a text of {} bytes is too long to tokenize at once; the limit is {}",
                                text.size(), kLongestText));
  }
  if (const auto offset = first_invalid_utf8(text)) {
    throw UserError(fmt::format("the text is not valid UTF-8 at byte {} of {}", *offset, text.size()));
  }
  std::unique_ptr<Context> context = impl_->pool.take();
  std::vector<std::int32_t> ids;
  ids.reserve(text.size() / 4 + 8);
  const PostProcessor& post = impl_->parts.post_processor;
  if (add_special_tokens) ids.insert(ids.end(), post.before().begin(), post.before().end());
  impl_->parts.added.split(
      text, false,
      [&](std::string_view piece, bool at_begin) { impl_->encode_text(piece, at_begin, *context, ids); },
      [&](std::int32_t id) { ids.push_back(id); });
  if (add_special_tokens) ids.insert(ids.end(), post.behind().begin(), post.behind().end());
  impl_->pool.give_back(std::move(context));
  return ids;
}

std::size_t Tokenizer::added_before() const {
  return impl_->parts.post_processor.before().size();
}

std::string Tokenizer::decode(const std::vector<std::int32_t>& ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const std::int32_t id : ids) {
    const AddedToken* added = impl_->parts.added.find(id);
    if (added != nullptr) {
      if (!skip_special_tokens || !added->special) tokens.push_back(added->decoded);
    } else if (const auto text = impl_->parts.bpe->vocabulary().text(id)) {
      tokens.emplace_back(*text);
    }
  }
  std::unique_ptr<Context> context = impl_->pool.take();
  std::string text = impl_->parts.decoder.decode(std::move(tokens), context->regex);
  impl_->pool.give_back(std::move(context));
  return text;
}

std::int32_t Tokenizer::vocab_size() const {
  return 1 + std::max(impl_->parts.bpe->vocabulary().largest_id(), impl_->parts.added.largest_id());
}

std::optional<std::int32_t> Tokenizer::token_id(std::string_view token) const {
  if (const AddedToken* added = impl_->parts.added.find(token)) return added->id;
  return impl_->parts.bpe->vocabulary().find(token);
}

const std::optional<std::string>& Tokenizer::eos_token() const {
  return impl_->special.eos;
}
const std::optional<std::string>& Tokenizer::bos_token() const {
  return impl_->special.bos;
}
const std::string& Tokenizer::digest() const {
  return impl_->digest;
}

}  // namespace ranktune::data
