# NCCL as the target NCCL::NCCL: the one that LibTorch loads (its wheel's neighbour) before any other,
# because one process must hold one NCCL.
if(DEFINED TORCH_INSTALL_PREFIX)
  get_filename_component(_nccl_wheel "${TORCH_INSTALL_PREFIX}/../nvidia/nccl" ABSOLUTE)
endif()
find_path(NCCL_INCLUDE_DIR nccl.h HINTS "${_nccl_wheel}/include" ENV NCCL_HOME PATH_SUFFIXES include)
find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS "${_nccl_wheel}/lib" ENV NCCL_HOME PATH_SUFFIXES lib)
if(NCCL_INCLUDE_DIR)
  file(STRINGS "${NCCL_INCLUDE_DIR}/nccl.h" _nccl_lines REGEX "#define NCCL_(MAJOR|MINOR|PATCH) ")
  string(REGEX REPLACE ".*NCCL_MAJOR ([0-9]+).*NCCL_MINOR ([0-9]+).*NCCL_PATCH ([0-9]+).*" "\\1.\\2.\\3"
         NCCL_VERSION "${_nccl_lines}")
endif()
include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NCCL REQUIRED_VARS NCCL_LIBRARY NCCL_INCLUDE_DIR VERSION_VAR NCCL_VERSION)
if(NCCL_FOUND AND NOT TARGET NCCL::NCCL)
  add_library(NCCL::NCCL UNKNOWN IMPORTED)
  set_target_properties(NCCL::NCCL PROPERTIES
    IMPORTED_LOCATION "${NCCL_LIBRARY}"
    INTERFACE_INCLUDE_DIRECTORIES "${NCCL_INCLUDE_DIR}")
endif()
mark_as_advanced(NCCL_INCLUDE_DIR NCCL_LIBRARY)
