# Tests of the tokenizer; this folder's CMakeLists.txt includes them.
ranktune_add_unit_test(data_tokenizer_test
  SOURCES tokenizer_test.cpp tokenizer_regex_test.cpp
  DEPENDS ranktune_data)

# Comparison with Hugging Face's tokenizers; by hand with --count 20000.
set(_golden "${PROJECT_SOURCE_DIR}/tests/golden")
add_executable(tokenize_lines "${_golden}/tokenize_lines.cpp")
target_link_libraries(tokenize_lines PRIVATE ranktune_data)
foreach(what IN ITEMS golden live parts)
  add_test(NAME tokenizer_${what} COMMAND "${RANKTUNE_TEST_PYTHON}" "${_golden}/tokenizer_check.py" ${what}
    --tool $<TARGET_FILE:tokenize_lines> --data "${RANKTUNE_TEST_DATA}" --count 300)
  set_tests_properties(tokenizer_${what} PROPERTIES LABELS golden SKIP_RETURN_CODE 77 TIMEOUT 300)
endforeach()
