# Compile settings shared by all our targets, and the helpers that make a room (library) or a test.

add_library(ranktune_settings INTERFACE)
target_include_directories(ranktune_settings INTERFACE "${PROJECT_SOURCE_DIR}/src")
target_compile_options(ranktune_settings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra>)
if(RANKTUNE_WARNINGS_AS_ERRORS)
  target_compile_options(ranktune_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-Werror>
    $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Werror --Werror=all-warnings>)
endif()
# LibTorch exports std::filesystem functions of the compiler that it was built with, some of which jump to nowhere here;
# the system's libstdc++ has to come before it in the order of symbol look-up.
target_link_options(ranktune_settings INTERFACE "SHELL:-Wl,--push-state,--no-as-needed -lstdc++ -Wl,--pop-state")
if(RANKTUNE_SANITIZE)
  target_compile_options(ranktune_settings INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${RANKTUNE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=undefined>)
  target_link_options(ranktune_settings INTERFACE -fsanitize=${RANKTUNE_SANITIZE})
endif()

# LibTorch's headers are not ours to warn about.
add_library(ranktune_torch INTERFACE)
target_link_libraries(ranktune_torch INTERFACE ${TORCH_LIBRARIES})
target_include_directories(ranktune_torch SYSTEM INTERFACE ${TORCH_INCLUDE_DIRS})

# ranktune_add_room(<name> SOURCES ... [DEPENDS ...]): a room of src/ as the static library ranktune_<name>.
function(ranktune_add_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS" ${ARGN})
  add_library(ranktune_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(ranktune_${name} PUBLIC ranktune_settings ${ARG_DEPENDS})
endfunction()

# ranktune_add_unit_test(<name> SOURCES ... DEPENDS ... [LABELS ...]): a GoogleTest program, one ctest entry.
# RANKTUNE_SHARED (cache variable or environment) is where the trial data lies; tests that need it say so.
function(ranktune_add_unit_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPENDS;LABELS;ENVIRONMENT" ${ARGN})
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ranktune_settings ${ARG_DEPENDS} GTest::gtest_main)
  add_test(NAME ${name} COMMAND ${name})
  if(NOT ARG_LABELS)
    set(ARG_LABELS unit)
  endif()
  set_tests_properties(${name} PROPERTIES LABELS "${ARG_LABELS}" TIMEOUT 300
    ENVIRONMENT "RANKTUNE_TEST_DATA=${RANKTUNE_TEST_DATA};RANKTUNE_PYTHON=${RANKTUNE_TEST_PYTHON};${ARG_ENVIRONMENT}")
endfunction()
