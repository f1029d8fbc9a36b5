#!/usr/bin/env python3
"""Every C++ and CUDA file is laid out as .clang-format says. `format.py --fix` makes it so."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CLANG_FORMAT = Path(sys.executable).parent / "clang-format"


def main():
    if not CLANG_FORMAT.exists():
        print(f"skipped: no {CLANG_FORMAT}; env/setup --test installs it")
        sys.exit(77)
    suffixes = {".cpp", ".hpp", ".cu", ".cuh"}
    files = sorted(f for folder in ("src", "tests") for f in (ROOT / folder).rglob("*") if f.suffix in suffixes)
    if sys.argv[1:] == ["--fix"]:
        sys.exit(subprocess.run([CLANG_FORMAT, "-i", *files]).returncode)
    found = subprocess.run([CLANG_FORMAT, "--dry-run", *files], capture_output=True, text=True).stderr
    wrong = sorted({line.split(":")[0] for line in found.splitlines() if "[-Wclang-format-violations]" in line})
    for name in wrong:
        print(f"{Path(name).relative_to(ROOT)} is not formatted")
    print(f"{len(files)} files, {len(wrong)} not formatted" + ("; env/format.py --fix" if wrong else ""))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
