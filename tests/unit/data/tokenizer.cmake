# Tests of the tokenizer; this folder's CMakeLists.txt includes them.
