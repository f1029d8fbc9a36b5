#include "data/tokenizer.hpp"

#include "base/error.hpp"

namespace ranktune::data {

struct Tokenizer::Impl {
  std::optional<std::string> eos;
  std::optional<std::string> bos;
  std::string digest;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Tokenizer Tokenizer::from_folder(const std::filesystem::path& folder) {
  throw Failure("tokenizer not built yet: " + folder.string());
}
std::vector<std::int32_t> Tokenizer::encode(std::string_view, bool) const { throw Failure("not built yet"); }
std::string Tokenizer::decode(const std::vector<std::int32_t>&, bool) const { throw Failure("not built yet"); }
std::int32_t Tokenizer::vocab_size() const { throw Failure("not built yet"); }
std::optional<std::int32_t> Tokenizer::token_id(std::string_view) const { throw Failure("not built yet"); }
const std::optional<std::string>& Tokenizer::eos_token() const { return impl_->eos; }
const std::optional<std::string>& Tokenizer::bos_token() const { return impl_->bos; }
const std::string& Tokenizer::digest() const { return impl_->digest; }

}  // namespace ranktune::data
