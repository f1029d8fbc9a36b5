// For tests that run on several ranks: the one session of the program.
#pragma once

#include "cluster/session.hpp"

namespace ranktune::testing {

// Made by main before the tests, finalised after them; its world size is the one that the test asked for.
const cluster::Session& session();

}  // namespace ranktune::testing
