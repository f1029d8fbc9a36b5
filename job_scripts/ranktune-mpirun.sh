#!/bin/bash
# Runs `ranktune train` under mpirun on this machine; Ctrl-C and TERM checkpoint and stop.
#
#   job_scripts/ranktune-mpirun.sh [-np RANKS] TRAIN-ARGUMENTS...
#
# RANKS: one per GPU by default, two on the CPU where there is none. RANKTUNE names the program; else it is the
# checkout's build/release/ranktune, the one beside an installed script, or the one on PATH. Under a bare mpirun, Ctrl-C kills
# the ranks about a second later, too early for a checkpoint. So here mpirun is outside of the terminal's process group, and INT, TERM and
# HUP reach it as USR2, on which the ranks finish the step, write a checkpoint and end. `--resume auto` goes on from it.
#
# Exit codes: ranktune's (0 done, 85 stopped on USR2 with a checkpoint, 2 wrong input, 1 anything else), 130 after
# Ctrl-C, 143 after TERM, 129 after HUP.
set -uo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd -P)

find_program() {
  local candidate
  for candidate in "${RANKTUNE:-}" "$here/../build/release/ranktune" "$here/../../../bin/ranktune" \
    "$(command -v ranktune)"; do
    [ -n "$candidate" ] && [ -x "$candidate" ] && printf '%s\n' "$candidate" && return 0
  done
  echo "ranktune-mpirun.sh: no ranktune found; build it (env/quickstart --prepare) or set RANKTUNE" >&2
  return 1
}

program=$(find_program) || exit 1
if [ "${1:-}" = -np ]; then
  ranks=${2:?ranktune-mpirun.sh: -np needs a number}
  shift 2
else
  ranks=$({ nvidia-smi -L 2>/dev/null || true; } | grep -c '^GPU ')
  [ "$ranks" -gt 0 ] || ranks=2
fi

options=(-np "$ranks")
if mpirun --version 2>/dev/null | grep -q 'Open MPI'; then
  # Bound to one core each, a rank's I/O, NCCL and watchdog threads would starve.
  options+=(--bind-to none)
  # Open MPI counts cores, and refuses more ranks than that.
  [ $((2 * ranks)) -le "$(nproc)" ] || options+=(--oversubscribe)
  if [ "$(id -u)" -eq 0 ]; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
  fi
fi

stopped_with=''
interrupted=0
pass_on() { # pass_on EXIT-CODE: the code to end with, empty for the program's own
  interrupted=1
  [ -z "$1" ] || stopped_with=${stopped_with:-$1}
  kill -USR2 "$mpirun" 2>/dev/null
}

set -m # a process group of its own for what follows
mpirun "${options[@]}" "$program" train "$@" </dev/null &
mpirun=$!
set +m
trap 'pass_on 130' INT
trap 'pass_on 143' TERM
trap 'pass_on 129' HUP
trap 'pass_on ""' USR1 USR2

code=0
while :; do
  interrupted=0
  wait "$mpirun"
  code=$?
  [ "$interrupted" -eq 1 ] || break
done
if [ -n "$stopped_with" ] && [ "$code" -eq 85 ]; then
  code=$stopped_with
fi
exit "$code"
