# The tokenizer's sources; the room's CMakeLists.txt includes this list.
set(RANKTUNE_TOKENIZER_SOURCES
  bpe.cpp normalizer.cpp pre_tokenizer.cpp tokenizer.cpp tokenizer_added_tokens.cpp tokenizer_decoder.cpp
  tokenizer_json.cpp tokenizer_part.cpp tokenizer_post_processor.cpp tokenizer_regex.cpp
  tokenizer_regex_translate.cpp unicode.cpp unicode_tables.cpp)
