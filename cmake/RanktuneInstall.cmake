# cmake --install: a prefix that can be moved and that needs nothing of the build machine's Python environment.
#   bin/ranktune
#   lib/ranktune/             shared libraries that the build found outside of system paths (LibTorch, CUDA, NCCL)
#   share/ranktune/job_scripts, share/ranktune/docs
#   share/ranktune/python/ranktune_report.py       reads and draws the metrics of runs
#   share/ranktune/modules/ranktune/VERSION.lua    module use PREFIX/share/ranktune/modules; module load ranktune
#
# The CUDA libraries' own paths name their own folder ($ORIGIN), so one flat folder needs no patching.

option(RANKTUNE_SYSTEM_TORCH "Install no copy of LibTorch and CUDA: the program finds them where they are now" OFF)

set(_data "share/ranktune")
install(DIRECTORY job_scripts DESTINATION "${_data}" USE_SOURCE_PERMISSIONS PATTERN quickstart.sbatch EXCLUDE)
install(DIRECTORY docs DESTINATION "${_data}")
install(FILES src/report/ranktune_report.py DESTINATION "${_data}/python")
install(FILES modules/ranktune.lua DESTINATION "${_data}/modules/ranktune" RENAME "${PROJECT_VERSION}.lua")
install(FILES README.md LICENSE DESTINATION "${_data}" OPTIONAL)

if(RANKTUNE_SYSTEM_TORCH)
  set_target_properties(ranktune PROPERTIES INSTALL_RPATH_USE_LINK_PATH ON)
  install(TARGETS ranktune RUNTIME DESTINATION bin)
  return()
endif()

set(_libraries "lib/ranktune")
set(_install_rpath "$ORIGIN/../${_libraries}")
# An MPI outside of system paths belongs to the cluster, with its plug-ins: it stays where it is.
foreach(library IN LISTS MPI_C_LIBRARIES)
  get_filename_component(_folder "${library}" DIRECTORY)
  if(NOT _folder MATCHES "^(/usr)?/lib")
    list(APPEND _install_rpath "${_folder}")
  endif()
endforeach()
list(REMOVE_DUPLICATES _install_rpath)
set_target_properties(ranktune PROPERTIES INSTALL_RPATH "${_install_rpath}")

install(TARGETS ranktune
  RUNTIME_DEPENDENCY_SET ranktune_libraries
  RUNTIME DESTINATION bin)
install(RUNTIME_DEPENDENCY_SET ranktune_libraries
  PRE_EXCLUDE_REGEXES "^libcuda\\.so" "^libnvidia-" "^libmpi" "^libopen-" "^libpmix" "^libprrte" "^libuc[mpst]"
                      "^libfabric"
  POST_EXCLUDE_REGEXES "^/lib" "^/usr/lib"
  LIBRARY DESTINATION "${_libraries}")

# What those libraries open by name when they first need it: cuBLAS the run-time compiler, cuDNN its parts.
get_filename_component(_wheels "${TORCH_INSTALL_PREFIX}/../nvidia" ABSOLUTE)
set(_opened_by_name "")
foreach(pattern IN ITEMS "cu13/lib/libnvrtc.so.*" "cu13/lib/libnvrtc-builtins.so.*" "cudnn/lib/libcudnn_*.so.*")
  file(GLOB _found "${_wheels}/${pattern}")
  list(APPEND _opened_by_name ${_found})
endforeach()
install(FILES ${_opened_by_name} DESTINATION "${_libraries}")
