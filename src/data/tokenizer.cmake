# The tokenizer's sources; the room's CMakeLists.txt includes this list.
set(RANKTUNE_TOKENIZER_SOURCES tokenizer.cpp)
