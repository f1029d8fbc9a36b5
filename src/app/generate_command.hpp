// `ranktune generate`: what a model, with or without an adapter, answers.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "app/options.hpp"
#include "cluster/session.hpp"
#include "train/generation.hpp"

namespace ranktune::app {

struct GenerateCommand {
  TrainOptions options;                    // model, device, prompt template, seed
  std::optional<std::string> prompt;       // one of these two
  std::optional<std::string> prompt_file;  // a prompt a line
  std::string input;                       // of every prompt's alpaca row
  bool raw = false;                        // prompts as they are, without a template
  std::int64_t max_new_tokens = 256;
  train::Sampling sampling;
  std::vector<std::string> problems;
  bool help = false;
};
GenerateCommand parse_generate_options(const std::vector<std::string>& arguments);
std::string generate_help();

// For a session of one rank. Returns the exit code.
int run_generate(const cluster::Session& session, const GenerateCommand& command);

}  // namespace ranktune::app
