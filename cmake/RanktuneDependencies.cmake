# Every outside library is found here, as an imported target.
#
# LibTorch brings NCCL, cuBLAS and cuDNN; the CUDA compiler comes from a system toolkit or from the
# Python wheels that `env/setup` installs (it passes CMAKE_CUDA_COMPILER and CMAKE_PREFIX_PATH).

if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
  # sm_80 to Hopper as machine code, PTX of the last for what comes after.
  set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPU architectures of our kernels")
endif()
if(NOT DEFINED ENV{TORCH_CUDA_ARCH_LIST})
  set(ENV{TORCH_CUDA_ARCH_LIST} "8.0;9.0")  # LibTorch's own flags; ours are above
endif()
enable_language(CUDA)
find_package(CUDAToolkit 13.0 REQUIRED)

# TorchConfig adds -gencode flags of its own and turns CMAKE_CUDA_ARCHITECTURES off; ours hold.
set(_cuda_flags "${CMAKE_CUDA_FLAGS}")
set(_cuda_architectures "${CMAKE_CUDA_ARCHITECTURES}")
find_package(Torch REQUIRED)
set(CMAKE_CUDA_FLAGS "${_cuda_flags}")
set(CMAKE_CUDA_ARCHITECTURES "${_cuda_architectures}")
find_package(Threads REQUIRED)
find_package(NCCL REQUIRED)
find_package(MPI REQUIRED COMPONENTS C)

set(HDF5_PREFER_PARALLEL OFF)
find_package(HDF5 REQUIRED COMPONENTS C)

if(RANKTUNE_STATIC_DEPENDENCIES)
  set(Boost_USE_STATIC_LIBS ON)
endif()
find_package(Boost 1.74 REQUIRED CONFIG COMPONENTS program_options)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(fmt 9 REQUIRED)
find_package(ZLIB REQUIRED)

find_package(PkgConfig REQUIRED)
foreach(name IN ITEMS libpcre2-8 libutf8proc libxxhash libzstd)
  string(REGEX REPLACE "^lib" "" short "${name}")
  string(REGEX REPLACE "-8$" "" short "${short}")
  pkg_check_modules(${short} REQUIRED IMPORTED_TARGET ${name})
endforeach()

# ranktune::pcre2, ranktune::utf8proc: shared by default, the archive where asked for.
foreach(pair IN ITEMS "pcre2:pcre2-8" "utf8proc:utf8proc")
  string(REPLACE ":" ";" pair "${pair}")
  list(GET pair 0 short)
  list(GET pair 1 library)
  add_library(ranktune_${short} INTERFACE)
  add_library(ranktune::${short} ALIAS ranktune_${short})
  if(RANKTUNE_STATIC_DEPENDENCIES)
    find_library(RANKTUNE_${short}_ARCHIVE NAMES lib${library}.a REQUIRED)
    target_link_libraries(ranktune_${short} INTERFACE "${RANKTUNE_${short}_ARCHIVE}")
    target_include_directories(ranktune_${short} SYSTEM INTERFACE ${${short}_INCLUDE_DIRS})
    target_compile_definitions(ranktune_${short} INTERFACE UTF8PROC_STATIC)
  else()
    target_link_libraries(ranktune_${short} INTERFACE PkgConfig::${short})
  endif()
endforeach()

if(RANKTUNE_TESTS)
  find_package(GTest REQUIRED)
endif()
find_package(Python3 REQUIRED COMPONENTS Interpreter)
