// `ranktune eval`: the loss of a model, with or without an adapter, on a dataset.
#pragma once

#include "app/options.hpp"
#include "cluster/session.hpp"

namespace ranktune::app {

// Collective. Returns the exit code that all ranks agreed on; throws as run_train does. `parsed` is what
// parse_eval_options gave, problems included.
int run_eval(const cluster::Session& session, const ParseResult& parsed);

}  // namespace ranktune::app
