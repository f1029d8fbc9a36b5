"""The job scripts around a stand-in program: signals, exit codes, requeueing, arguments. Needs bash alone: mpirun, srun
and scontrol are stand-ins too, which record how they were called."""

import os
import signal
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parents[2] / "job_scripts"

# Runs the program that follows its options; like Open MPI's mpirun it passes USR2 on and returns the ranks' code.
LAUNCHER = """#!/bin/bash
[ "$1" = --version ] && { echo "mpirun (Open MPI) 4.1.4"; exit 0; }
echo "$(basename "$0") $*" >>"$CALLS"
while [ "${1#-}" != "$1" ]; do
  case $1 in -np | --bind-to) shift 2 ;; *) shift ;; esac
done
"$@" & rank=$!
trap 'kill -USR2 $rank' USR2
trap 'kill -KILL $rank; exit 1' INT TERM
while :; do
  wait $rank; code=$?
  kill -0 $rank 2>/dev/null || break
done
wait $rank; exit $?
"""

# Trains until USR2 (or at once, where CODE is set) and checkpoints STEP.
PROGRAM = """#!/bin/bash
echo "program $*" >>"$CALLS"
while [ $# -gt 0 ]; do
  [ "$1" = --output_dir ] && output=$2
  shift
done
[ -n "${STEP:-}" ] && mkdir -p "$output/checkpoint-$STEP"
trap 'echo stopping >>"$CALLS"; exit 85' USR2
[ "${CODE:-}" = 0 ] && mkdir -p "$output/adapter"
[ -n "${CODE:-}" ] && exit "$CODE"
for _ in $(seq 200); do sleep 0.1; [ -e "$READY" ] || touch "$READY"; done
"""

SCONTROL = '#!/bin/bash\necho "scontrol $*" >>"$CALLS"\n'


class JobScripts(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        for name, text in (
            ("bin/mpirun", LAUNCHER),
            ("bin/srun", LAUNCHER),
            ("bin/scontrol", SCONTROL),
            ("bin/nvidia-smi", "#!/bin/bash\nexit 9\n"),
            ("ranktune", PROGRAM),
        ):
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        self.calls_file = self.folder / "calls"
        self.ready = self.folder / "ready"

    def start(self, script, *arguments, **environment):
        self.ready.unlink(missing_ok=True)
        self.calls_file.write_text("")
        slurm = {k: None for k in os.environ if k.startswith("SLURM_")}
        env = {
            **{k: v for k, v in os.environ.items() if k not in slurm},
            "PATH": f"{self.folder}/bin:{os.environ['PATH']}",
            "CALLS": str(self.calls_file),
            "READY": str(self.ready),
            "RANKTUNE": str(self.folder / "ranktune"),
            "SLURM_JOB_ID": "17",
            "SLURM_SUBMIT_DIR": str(self.folder),
            **environment,
        }
        return subprocess.Popen(
            ["bash", SCRIPTS / script, *arguments],
            env=env,
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def finish(self, process):
        output, _ = process.communicate(timeout=30)
        return process.returncode, self.calls_file.read_text().splitlines(), output

    def run_to_end(self, script, *arguments, **environment):
        return self.finish(self.start(script, *arguments, **environment))

    def wait_until_training(self):
        deadline = time.monotonic() + 20
        while not self.ready.exists():
            self.assertLess(time.monotonic(), deadline, "the stand-in did not start")
            time.sleep(0.02)

    # --- ranktune-mpirun.sh ---

    def test_mpirun_passes_arguments_and_exit_codes(self):
        for code in (0, 1, 2, 85):
            result, calls, _ = self.run_to_end("ranktune-mpirun.sh", "-np", "3", "--r", "8", "--x=a b", CODE=str(code))
            self.assertEqual(result, code)
            self.assertRegex(calls[0], r"^mpirun -np 3 --bind-to none .*train --r 8 --x=a b$")
            self.assertEqual(calls[1], "program train --r 8 --x=a b")

    def test_mpirun_runs_two_ranks_without_a_gpu(self):
        _, calls, _ = self.run_to_end("ranktune-mpirun.sh", CODE="0")
        self.assertIn("-np 2 ", calls[0])

    def test_control_c_reaches_the_ranks_as_usr2(self):
        process = self.start("ranktune-mpirun.sh", "-np", "1")
        self.wait_until_training()
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does it: to the whole foreground group
        code, calls, _ = self.finish(process)
        self.assertEqual(code, 130)
        self.assertIn("stopping", calls)

    def test_term_and_usr2_stop_with_a_checkpoint(self):
        for number, expected in ((signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGUSR2, 85)):
            process = self.start("ranktune-mpirun.sh", "-np", "1")
            self.wait_until_training()
            process.send_signal(number)
            code, calls, _ = self.finish(process)
            self.assertEqual(code, expected)
            self.assertIn("stopping", calls)

    # --- the two batch scripts ---

    def test_85_requeues_and_other_codes_do_not(self):
        for script in ("ranktune-srun.sbatch", "ranktune-mpirun.sbatch"):
            for code in (0, 1, 2, 85):
                result, calls, output = self.run_to_end(script, CODE=str(code), STEP=f"{code:06}")
                self.assertEqual("scontrol requeue 17" in calls, code == 85, output)
                if code != 85:
                    self.assertEqual(result, code)

    def test_two_attempts_without_a_new_step_are_the_end(self):
        for script in ("ranktune-srun.sbatch", "ranktune-mpirun.sbatch"):
            attempts = []
            for step in ("000008", "000009", "000009", "000009"):
                _, calls, _ = self.run_to_end(script, "--output_dir", f"out-{script}", CODE="85", STEP=step)
                attempts.append("scontrol requeue 17" in calls)
            self.assertEqual(attempts, [True, True, True, False])
            _, calls, _ = self.run_to_end(script, "--output_dir", f"out-{script}", CODE="85", SLURM_JOB_ID="18")
            self.assertIn("scontrol requeue 18", calls)  # another job starts to count anew

    def test_no_requeue_after_term(self):
        process = self.start("ranktune-mpirun.sbatch", STEP="000004")
        self.wait_until_training()
        process.terminate()
        code, calls, _ = self.finish(process)
        self.assertEqual(code, 85)
        self.assertIn("stopping", calls)
        self.assertNotIn("scontrol requeue 17", calls)

        process = self.start("ranktune-srun.sbatch", STEP="000004")
        self.wait_until_training()
        process.terminate()  # the script alone; the ranks end with 85 because of something else
        with open(f"/proc/{process.pid}/task/{process.pid}/children") as children:
            for child in children.read().split():
                os.kill(int(child), signal.SIGUSR2)
        code, calls, _ = self.finish(process)
        self.assertEqual(code, 85)
        self.assertNotIn("scontrol requeue 17", calls)

    def test_usr2_to_the_mpirun_job_requeues(self):
        process = self.start("ranktune-mpirun.sbatch", STEP="000004")
        self.wait_until_training()
        process.send_signal(signal.SIGUSR2)
        _, calls, output = self.finish(process)
        self.assertIn("scontrol requeue 17", calls, output)

    def test_a_requeued_attempt_resumes(self):
        for script in ("ranktune-srun.sbatch", "ranktune-mpirun.sbatch"):
            _, calls, _ = self.run_to_end(script, "--r=8", CODE="0")
            self.assertEqual(calls[1], "program train --r=8 --output_dir outputs")
            _, calls, _ = self.run_to_end(script, "--resume", "never", "--r=8", CODE="0", SLURM_RESTART_COUNT="1")
            self.assertEqual(calls[1], "program train --r=8 --output_dir outputs --resume auto")

    def test_array_tasks_have_directories_of_their_own(self):
        (self.folder / "run.conf").write_text("r = 8\noutput_dir = sweep\n")
        for script in ("ranktune-srun.sbatch", "ranktune-mpirun.sbatch"):
            _, calls, _ = self.run_to_end(script, "--config", "run.conf", CODE="0", SLURM_ARRAY_TASK_ID="3")
            self.assertEqual(
                calls[1], "program train --config run.conf --output_dir sweep/task-3 --save_path model/task-3"
            )

    def test_srun_that_launched_nothing_is_a_failure(self):
        (self.folder / "bin" / "srun").write_text("#!/bin/bash\nexit 0\n")
        code, _, output = self.run_to_end("ranktune-srun.sbatch")
        self.assertEqual(code, 1)
        self.assertIn("no outputs/adapter", output)

    def test_srun_is_asked_for_what_the_program_needs(self):
        _, calls, _ = self.run_to_end("ranktune-srun.sbatch", CODE="0")
        self.assertIn("srun --mpi=pmix --gpu-bind=none --kill-on-bad-exit=1 --wait=60 ", calls[0])
        header = (SCRIPTS / "ranktune-srun.sbatch").read_text()
        self.assertIn("#SBATCH --signal=USR2@", header)  # to every rank
        header = (SCRIPTS / "ranktune-mpirun.sbatch").read_text()
        self.assertIn("#SBATCH --signal=B:USR2@", header)  # to the script, which passes it on


if __name__ == "__main__":
    unittest.main()
