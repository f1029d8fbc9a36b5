#include "train/generation.hpp"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.hpp"
#include "base/philox.hpp"

namespace ranktune::train {
namespace {

constexpr std::size_t kContext = 8;  // tokens of a prompt that its continuation is decoded with
constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

data::PassBatch batch_of(std::span<const std::int32_t> ids, std::int64_t position) {
  data::PassBatch batch;
  batch.ids.assign(ids.begin(), ids.end());
  batch.positions.resize(ids.size());
  std::iota(batch.positions.begin(), batch.positions.end(), static_cast<std::int32_t>(position));
  batch.targets.assign(ids.size(), -1);
  batch.targets.back() = 0;  // of any id: a pass has a row whose logits are asked for
  batch.target_tokens = 1;
  batch.cu_seqlens = {0, static_cast<std::int32_t>(ids.size())};
  batch.samples = {0};
  batch.max_seqlen = static_cast<std::int32_t>(ids.size());
  return batch;
}

}  // namespace

std::int32_t choose_token(std::span<const float> logits, const Sampling& sampling, std::uint64_t index) {
  const auto likeliest = std::max_element(logits.begin(), logits.end());
  RT_CHECK(likeliest != logits.end() && std::isfinite(*likeliest), "the logits are finite");
  if (sampling.temperature <= 0) return static_cast<std::int32_t>(likeliest - logits.begin());

  std::vector<std::int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::int32_t a, std::int32_t b) {
    return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
  });
  if (sampling.top_k > 0) order.resize(std::min(order.size(), static_cast<std::size_t>(sampling.top_k)));
  std::vector<double> weights;
  for (const std::int32_t id : order) {
    weights.push_back(std::exp((logits[static_cast<std::size_t>(id)] - *likeliest) / sampling.temperature));
  }
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < sampling.top_p * all)) kept += weights[count++];

  const Philox4 bits = random_bits(sampling.seed, RandomPurpose::sampling, 0, index);
  double left = static_cast<double>(bits.x) / 4294967296.0 * kept;
  std::size_t chosen = 0;
  while (chosen + 1 < count && left >= weights[chosen]) left -= weights[chosen++];
  return order[chosen];
}

void generate(model::Decoder& decoder, const std::vector<std::int32_t>& prompt, const Generation& how,
              const std::function<bool(std::int32_t)>& next) {
  RT_CHECK(!prompt.empty(), "a prompt has a token");
  const auto options = decoder.options();
  const auto tokens = static_cast<std::int64_t>(prompt.size());
  decoder.reserve(tokens, decoder.config().layers);
  model::KvCache cache(decoder.config(), tokens + how.max_new_tokens,
                       at::TensorOptions().device(options.device).dtype(options.dtype));
  std::vector<std::int32_t> ids = prompt;
  for (std::int64_t made = 0; made < how.max_new_tokens; ++made) {
    const data::PassBatch batch = batch_of(ids, cache.length());
    const model::DevicePass pass(batch, model::exact_shape(batch), options.device);
    const at::Tensor logits = decoder.next_logits(pass, cache).to(at::kCPU);
    const std::uint64_t draw = (std::uint64_t{how.first_draw} << 32) + static_cast<std::uint64_t>(made);
    const std::int32_t id = choose_token(
        {logits.const_data_ptr<float>(), static_cast<std::size_t>(logits.numel())}, how.sampling, draw);
    if (how.stops.contains(id) || !next(id)) return;
    ids = {id};
  }
}

TextStream::TextStream(const data::Tokenizer& tokenizer, const std::vector<std::int32_t>& prompt)
    : tokenizer_(tokenizer),
      ids_(prompt.end() - static_cast<std::ptrdiff_t>(std::min(prompt.size(), kContext)), prompt.end()),
      given_(tokenizer.decode(ids_, true).size()) {}

std::string TextStream::add(std::int32_t id) {
  ids_.push_back(id);
  const std::string text = tokenizer_.decode(ids_, true);
  // Bytes that are no character yet are decoded to this one.
  if (text.ends_with(kReplacement) || text.size() <= given_) return {};
  const std::string more = text.substr(given_);
  given_ = text.size();
  return more;
}

std::string TextStream::finish() {
  const std::string text = tokenizer_.decode(ids_, true);
  return text.size() > given_ ? text.substr(given_) : std::string();
}

}  // namespace ranktune::train
