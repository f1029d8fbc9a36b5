# Functions shared by env/setup, env/quickstart and env/test; sourced, never run.
#
# Sets: ranktune_root (the checkout), ranktune_cache, ranktune_venv, ranktune_python, ranktune_model (the demo model),
# ranktune_logs, ranktune_configure_arguments. The environment may set RANKTUNE_CACHE, CUDA_HOME, CMAKE_PREFIX_PATH,
# Torch_DIR, CCACHE_DIR and CMAKE_BUILD_PARALLEL_LEVEL.

ranktune_root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
ranktune_cache=${RANKTUNE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ranktune}
ranktune_venv=$ranktune_cache/venv
ranktune_python=$ranktune_venv/bin/python
ranktune_model=$ranktune_cache/models/SmolLM2-135M-Instruct
ranktune_logs=$ranktune_cache/logs
ranktune_missing=()
mkdir -p "$ranktune_logs"
export RANKTUNE_CACHE=$ranktune_cache
export CCACHE_DIR=${CCACHE_DIR:-$ranktune_cache/ccache}
# Relative paths, so that every clone and build folder shares what was compiled.
export CCACHE_BASEDIR=$ranktune_root CCACHE_NOHASHDIR=1

say() { printf '%s\n' "$*"; }
fail() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# While a stage runs on a terminal: its seconds, and the build tool's [n/m].
ticker() {
  local text=$1 log=$2 start=$3 progress
  while sleep 1; do
    progress=$(tail -c 400 "$log" 2>/dev/null | grep -o '^\[[0-9]*/[0-9]*\]' | tail -n 1)
    printf '\r%-58s %4d s %s ' "$text" $((SECONDS - start)) "$progress"
  done
}

# stage TEXT LOG COMMAND...: runs COMMAND with its output in a log file; one line with the seconds it took.
stage() {
  local text=$1 log=$ranktune_logs/$2.log start=$SECONDS ticker='' code=0
  shift 2
  printf '%-58s' "$text"
  : >"$log"
  if [ -t 1 ]; then
    ticker "$text" "$log" "$start" &
    ticker=$!
  fi
  "$@" >"$log" 2>&1 </dev/null || code=$?
  if [ -n "$ticker" ]; then
    kill "$ticker" 2>/dev/null
    wait "$ticker" 2>/dev/null || true
    printf '\r%-58s' "$text"
  fi
  if [ "$code" -eq 0 ]; then
    printf ' %4d s           \n' $((SECONDS - start))
    return 0
  fi
  printf ' failed after %d s\n' $((SECONDS - start))
  tail -n 25 "$log" >&2
  printf 'error: %s failed with code %d; the whole log: %s\n' "$text" "$code" "$log" >&2
  return "$code"
}

# --- what the machine has ------------------------------------------------------------------------------------------

is_debian() { command -v dpkg-query >/dev/null && command -v apt-get >/dev/null; }

# The lines of packages.debian.txt as "PACKAGE CHECK".
listed_packages() { sed -e 's/#.*//' "$ranktune_root/env/packages.debian.txt" | awk 'NF == 2 { print $1, $2 }'; }

package_installed() { dpkg-query -W -f='${db:Status-Status}\n' "$1" 2>/dev/null | grep -qx installed; }

# The prefixes that modules, Spack and users set, one a line.
prefixes() { printf '%s\n' "${CMAKE_PREFIX_PATH:-}" | tr ':;' '\n\n' | sed '/^$/d'; }

header_found() {
  local prefix
  while read -r prefix; do
    [ -e "$prefix/include/$1" ] && return 0
  done < <(prefixes)
  printf '#include <%s>\n' "$1" | "${CXX:-c++}" -x c++ -std=c++20 -E - >/dev/null 2>&1 ||
    printf '#include <%s>\n' "$1" | "${CXX:-c++}" -x c++ -std=c++20 -I /usr/include/hdf5/serial -E - >/dev/null 2>&1
}

# thing_found CHECK: is the command, header or Python module there, whoever brought it?
thing_found() {
  local kind=${1%%:*} name=${1#*:}
  case ${kind#!} in
    command) command -v "$name" >/dev/null || { [ "$name" = g++ ] && [ -n "${CXX:-}" ]; } ;;
    header) header_found "$name" ;;
    python) "$(host_python)" -c "import $name" 2>/dev/null ;;
    *) fail "env/packages.debian.txt: unknown check $1" ;;
  esac
}

# The newest Python that the pinned packages have wheels for.
host_python() {
  local name
  for name in python3.13 python3.12 python3.11 python3; do
    if command -v "$name" >/dev/null &&
      "$name" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null; then
      printf '%s\n' "$name"
      return 0
    fi
  done
  printf 'python3\n'
}

# --- distribution packages -----------------------------------------------------------------------------------------

install_packages() {
  local sudo=()
  [ "$(id -u)" -eq 0 ] || sudo=(sudo -n)
  "${sudo[@]}" apt-get update -q
  "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "$@"
}

can_install() { is_debian && { [ "$(id -u)" -eq 0 ] || sudo -n true 2>/dev/null; }; }

# Installs what is missing where that is allowed; else says what an administrator has to install, and goes on unless
# something is missing without which nothing works. ranktune_missing keeps the names for a later failure of CMake.
ensure_packages() {
  local package check absent=() stop=()
  while read -r package check; do
    if is_debian; then
      package_installed "$package" || absent+=("$package=$check")
    else
      absent+=("$package=$check")
    fi
  done < <(listed_packages)
  [ ${#absent[@]} -eq 0 ] && return 0
  if can_install; then
    stage "installing ${#absent[@]} Debian packages" packages install_packages "${absent[@]%%=*}"
    return
  fi
  for package in "${absent[@]}"; do
    check=${package#*=}
    thing_found "$check" && continue
    ranktune_missing+=("${package%%=*}")
    [ "${check#!}" = "$check" ] || stop+=("${package%%=*} (${check#!})")
  done
  say_missing
  [ ${#stop[@]} -eq 0 ] || fail "cannot go on without ${stop[*]}"
  [ ${#ranktune_missing[@]} -eq 0 ] || say "  going on with what is there"
}

say_missing() {
  [ ${#ranktune_missing[@]} -eq 0 ] && return 0
  if is_debian; then
    say "missing packages: ${ranktune_missing[*]}"
    say "  an administrator installs them with: apt-get install -y ${ranktune_missing[*]}"
    say "  modules and prefixes in CMAKE_PREFIX_PATH do as well"
  else
    say "not found (Debian's package names): ${ranktune_missing[*]}"
    say "  load modules or set CMAKE_PREFIX_PATH for them"
  fi
}

# --- CUDA and LibTorch ---------------------------------------------------------------------------------------------

# The folder of a CUDA 13 toolkit of the system, or nothing.
system_cuda() {
  local nvcc home
  for nvcc in "${CUDA_HOME:+$CUDA_HOME/bin/nvcc}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
    if [ -x "$nvcc" ] && "$nvcc" --version 2>/dev/null | grep -q 'release 13\.'; then
      home=$(cd "$(dirname "$(readlink -f "$nvcc")")/.." && pwd)
      [ -e "$home/include/cuda_runtime.h" ] && printf '%s\n' "$home" && return 0
    fi
  done
  return 0
}

# The folder of a LibTorch that the user brings (Torch_DIR or CMAKE_PREFIX_PATH), or nothing.
system_torch() {
  local prefix folder
  while read -r prefix; do
    for folder in "$prefix" "$prefix/Torch" "$prefix/share/cmake/Torch"; do
      [ -e "$folder/TorchConfig.cmake" ] && printf '%s\n' "$folder" && return 0
    done
  done < <(printf '%s\n' "${Torch_DIR:-}"; prefixes)
  return 0
}

site_packages() { "$ranktune_python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# The wheels leave out lib64 and the unversioned library names that the linker asks for.
repair_cuda_wheel() {
  local cuda=$1 library link
  [ -e "$cuda/lib64" ] || ln -s lib "$cuda/lib64"
  for library in "$cuda"/lib/lib*.so.*; do
    link=${library%%.so.*}.so
    [ -e "$link" ] || ln -s "$(basename "$library")" "$link"
  done
}

# --- the virtual environment ---------------------------------------------------------------------------------------

# requirement_files base|test: the lists to install, one a line.
requirement_files() {
  printf '%s\n' "$ranktune_root/env/requirements.txt"
  [ -n "$(system_cuda)" ] || printf '%s\n' "$ranktune_root/env/requirements-cuda.txt"
  [ "$1" = base ] || printf '%s\n' "$ranktune_root/env/requirements-test.txt"
}

install_requirements() {
  local kind=$1 file arguments=()
  [ -x "$ranktune_python" ] || "$(host_python)" -m venv "$ranktune_venv"
  while read -r file; do
    if [ "$kind" = base ] && [ -n "$(system_torch)" ]; then
      grep -v '^torch==' "$file" >"$ranktune_cache/$(basename "$file")"
      file=$ranktune_cache/$(basename "$file")
    fi
    arguments+=(-r "$file")
  done < <(requirement_files "$kind")
  "$ranktune_python" -m pip install --disable-pip-version-check --no-input --progress-bar off \
    -c "$ranktune_root/env/requirements.lock" "${arguments[@]}"
}

# ensure_python base|test: nothing to do where the stamp names the same lists.
ensure_python() {
  local kind=$1 stamp=$ranktune_venv/.ranktune-$1 files hash
  mapfile -t files < <(requirement_files "$kind")
  hash=$({ cat "${files[@]}" "$ranktune_root/env/requirements.lock"; system_torch; } | sha256sum | cut -d ' ' -f 1)
  [ -x "$ranktune_python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$hash" ] && return 0
  stage "installing LibTorch, CMake and Python packages" "python-$kind" install_requirements "$kind"
  printf '%s\n' "$hash" >"$stamp"
}

ensure_model() {
  [ -e "$ranktune_model/model.safetensors" ] && return 0
  stage "fetching the demo model (93 MB)" model \
    "$ranktune_python" "$ranktune_root/env/demo/fetch_model.py" --cache "$ranktune_cache"
}

# --- configure and build -------------------------------------------------------------------------------------------

# Fills ranktune_configure_arguments with what CMake has to know about this machine.
find_toolchain() {
  local cuda torch
  torch=$(system_torch)
  [ -n "$torch" ] || torch=$(site_packages)/torch/share/cmake/Torch
  cuda=$(system_cuda)
  if [ -z "$cuda" ]; then
    cuda=$(site_packages)/nvidia/cu13
    repair_cuda_wheel "$cuda"
  fi
  ranktune_configure_arguments=(
    -DTorch_DIR="$torch"
    -DCMAKE_CUDA_COMPILER="$cuda/bin/nvcc"
    -DCUDAToolkit_ROOT="$cuda"
    -DCUDA_TOOLKIT_ROOT_DIR="$cuda"
    -DPython3_EXECUTABLE="$ranktune_python"
    -DRANKTUNE_TEST_PYTHON="$ranktune_python"
    -DRANKTUNE_TEST_MODEL="$ranktune_model"
    -DCMAKE_MAKE_PROGRAM="$ranktune_venv/bin/ninja"
  )
}

# configure PRESET: once per set of arguments; Ninja itself sees changed CMake files.
configure() {
  local preset=$1 folder=$ranktune_root/build/$1 hash
  hash=$(printf '%s\n' "${ranktune_configure_arguments[@]}" "${CC:-}" "${CXX:-}" "${CMAKE_PREFIX_PATH:-}" |
    sha256sum | cut -d ' ' -f 1)
  [ -e "$folder/build.ninja" ] && [ "$(cat "$folder/.configured" 2>/dev/null)" = "$hash" ] && return 0
  stage "configuring build/$preset" "configure-$preset" \
    "$ranktune_venv/bin/cmake" --preset "$preset" -S "$ranktune_root" --fresh "${ranktune_configure_arguments[@]}" ||
    { say_missing; return 1; }
  printf '%s\n' "$hash" >"$folder/.configured"
}

# As many compilers as the allowed CPUs and the memory (2 GiB each) carry.
build_jobs() {
  local memory_gib jobs
  memory_gib=$(awk '/^MemAvailable:/ { print int($2 / 1048576) }' /proc/meminfo)
  jobs=$(nproc)
  [ "$jobs" -le $((memory_gib / 2)) ] || jobs=$((memory_gib / 2))
  [ "$jobs" -ge 1 ] || jobs=1
  printf '%s\n' "${CMAKE_BUILD_PARALLEL_LEVEL:-$jobs}"
}

# build PRESET [TARGET...]
build() {
  local preset=$1 target arguments=()
  shift
  for target in "$@"; do arguments+=(--target "$target"); done
  stage "building build/$preset" "build-$preset" \
    "$ranktune_venv/bin/cmake" --build "$ranktune_root/build/$preset" -j "$(build_jobs)" "${arguments[@]}"
}

# --- MPI -----------------------------------------------------------------------------------------------------------

gpu_count() { { nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU ' || true; }
