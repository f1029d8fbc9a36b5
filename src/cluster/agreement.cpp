// What one rank throws, all ranks throw; why one stops, all stop.
#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

#include "base/error.hpp"
#include "cluster/session.hpp"
#include "cluster/signals.hpp"

namespace ranktune::cluster {
namespace {

enum class Kind : int { fine, stop, quiet, failure, user };

struct Outcome {
  Kind kind = Kind::fine;
  int code = 0;                        // StopReason, or AgreedFailure's exit code
  std::vector<std::string> sentences;  // of user and failure
};

Outcome outcome_of(const std::function<void()>& work, const std::string& where) {
  try {
    work();
    return {};
  } catch (const StopRequested& stop) {
    return {Kind::stop, static_cast<int>(stop.reason), {}};
  } catch (const AgreedFailure& agreed) {
    return {Kind::quiet, agreed.exit_code, {}};
  } catch (const UserError& error) {
    return {Kind::user, 0, error.sentences()};
  } catch (const AgreedError& error) {  // of a nested together: says already where it was
    return {Kind::failure, 0, {error.what()}};
  } catch (const std::exception& error) {
    return {Kind::failure, 0, {where + error.what()}};
  } catch (...) {
    return {Kind::failure, 0, {where + "an exception of unknown type"}};
  }
}

// JSON would refuse bytes that are not UTF-8, as a path may hold; those are replaced.
std::string packed(const Outcome& outcome) {
  const nlohmann::json json{{"kind", outcome.kind}, {"code", outcome.code}, {"sentences", outcome.sentences}};
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

Outcome unpacked(const std::string& text) {
  const auto json = nlohmann::json::parse(text);
  return {json.at("kind"), json.at("code"), json.at("sentences")};
}

// The sentences of the first rank of this kind, then those of others that are new, up to a readable number.
std::vector<std::string> distinct_sentences(const std::vector<Outcome>& outcomes,
                                            const std::vector<std::string>& hosts) {
  constexpr std::size_t kReadable = 20;
  std::vector<std::string> plain;
  std::vector<std::string> marked;
  std::size_t left_out = 0;
  bool first = true;
  for (std::size_t rank = 0; rank < outcomes.size(); ++rank) {
    if (outcomes[rank].kind != Kind::user) continue;
    for (const auto& sentence : outcomes[rank].sentences) {
      if (std::find(plain.begin(), plain.end(), sentence) != plain.end()) continue;
      plain.push_back(sentence);
      if (first || marked.size() < kReadable) {
        marked.push_back(first ? sentence : fmt::format("rank {} on {}: {}", rank, hosts[rank], sentence));
      } else {
        ++left_out;
      }
    }
    first = false;
  }
  if (left_out > 0) marked.push_back(fmt::format("{} more of other ranks are left out.", left_out));
  return marked;
}

const Outcome* first_of(const std::vector<Outcome>& outcomes, Kind kind) {
  const auto at =
      std::find_if(outcomes.begin(), outcomes.end(), [&](const auto& one) { return one.kind == kind; });
  return at == outcomes.end() ? nullptr : &*at;
}

// Throws what all ranks have concluded from the same outcomes.
void throw_verdict(const std::vector<Outcome>& outcomes, const std::vector<std::string>& hosts) {
  const auto* failure = first_of(outcomes, Kind::failure);
  if (first_of(outcomes, Kind::user) != nullptr) {
    auto sentences = distinct_sentences(outcomes, hosts);
    if (failure != nullptr) sentences.push_back(failure->sentences.at(0));
    throw AgreedUserError(std::move(sentences));
  }
  if (failure != nullptr) throw AgreedError(failure->sentences.at(0));
  int quiet = 0;
  auto reason = StopReason::none;
  for (const auto& outcome : outcomes) {
    if (outcome.kind == Kind::quiet) quiet = std::max(quiet, outcome.code);
    if (outcome.kind == Kind::stop) reason = stronger(reason, static_cast<StopReason>(outcome.code));
  }
  if (quiet != 0) throw AgreedFailure{quiet};
  throw StopRequested{reason};
}

}  // namespace

StopReason agreed_stop(const Session& session, StopReason own) {
  StopReason reason = own;
  for (const std::string& other : session.gather_all(std::to_string(static_cast<int>(own)))) {
    reason = stronger(reason, static_cast<StopReason>(std::stoi(other)));
  }
  return reason;
}

void Session::together(std::string_view phase, const std::function<void()>& work) const {
  const auto& host = hosts_[static_cast<std::size_t>(rank_)];
  const auto mine = outcome_of(work, fmt::format("rank {} on {}: {}: ", rank_, host, phase));
  const auto say_it = [&] {
    for (const auto& sentence : mine.sentences) {
      fmt::print(stderr, "ranktune: rank {} on {} has failed and waits for the other ranks: {}\n", rank_,
                 host, sentence);
    }
    std::fflush(stderr);
  };
  if (!anyone(mine.kind != Kind::fine, say_it)) return;
  std::vector<Outcome> outcomes;
  for (const auto& text : gather_all(packed(mine))) outcomes.push_back(unpacked(text));
  throw_verdict(outcomes, hosts_);
}

}  // namespace ranktune::cluster
