#!/usr/bin/env python3
"""clang-tidy over the files of src/ that a build made, in parallel. What was clean before, in the very same text, is not
read again.

    tidy.py --build BUILD_DIR [--cache DIR] [--all]

Without --all (or RANKTUNE_TIDY_ALL in the environment), files that include LibTorch are left out: they take most of
the time. The cache is a folder of empty files named by digests.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BIN = Path(sys.executable).parent


def dependencies(build):
    """Object file -> the files it was made from, as Ninja recorded them."""
    text = subprocess.run([BIN / "ninja", "-C", build, "-t", "deps"], capture_output=True, text=True, check=True).stdout
    result, files = {}, []
    for line in text.splitlines():
        if line.startswith("    "):
            files.append((build / line.strip()).resolve())
        elif ": #deps" in line:
            files = result.setdefault(line.split(": #deps")[0], [])
    return result


def digest(command, files):
    """Over the compile command, the checks and all files of src/ that the object was made from."""
    text = hashlib.sha256(json.dumps(command, sort_keys=True).encode())
    for file in [ROOT / ".clang-tidy", *sorted(files)]:
        text.update(str(file).encode() + b"\0" + file.read_bytes())
    return text.hexdigest()


def wanted(build, all_files):
    """(source file, digest) of every C++ file of src/ to look at."""
    known = dependencies(build)
    for command in json.loads((build / "compile_commands.json").read_text()):
        source = Path(command["file"])
        files = known.get(os.path.relpath(build / command["output"], build))
        if source.suffix != ".cpp" or not source.is_relative_to(ROOT / "src") or files is None:
            continue
        if all_files or not any("/ATen/" in str(file) or "/c10/" in str(file) for file in files):
            yield source, digest(command, [file for file in files if file.is_relative_to(ROOT / "src")])


def check(build, source):
    command = [BIN / "clang-tidy", "-p", build, "--quiet", "--warnings-as-errors=*", source]
    return subprocess.run(command, capture_output=True, text=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--all", action="store_true", default=bool(os.environ.get("RANKTUNE_TIDY_ALL")))
    arguments = parser.parse_args()
    if not (BIN / "clang-tidy").exists():
        print(f"skipped: no {BIN}/clang-tidy; env/setup --test installs it")
        sys.exit(77)
    build = arguments.build.resolve()
    cache = arguments.cache or Path(os.environ.get("RANKTUNE_CACHE") or build) / "tidy"
    cache.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([BIN / "clang-tidy", "--version"], capture_output=True, text=True, check=True).stdout
    prefix = hashlib.sha256(version.encode()).hexdigest()[:8]
    todo = [(s, cache / f"{prefix}-{d}") for s, d in wanted(build, arguments.all)]
    if not todo:
        print(f"skipped: nothing has been built in {build}")
        sys.exit(77)
    fresh = [(s, stamp) for s, stamp in todo if not stamp.exists()]
    failures = 0
    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        for (source, stamp), result in zip(fresh, pool.map(lambda item: check(build, item[0]), fresh)):
            if result.returncode == 0:
                stamp.touch()
            else:
                failures += 1
                print(f"--- {source.relative_to(ROOT)}\n{result.stdout}{result.stderr}", flush=True)
    print(f"{len(todo)} files, {len(todo) - len(fresh)} known to be clean, {failures} with findings")
    sys.exit(failures > 0)


if __name__ == "__main__":
    main()
