#include "data/tokenizer.hpp"

#include <gtest/gtest.h>
