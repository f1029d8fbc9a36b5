"""Stops on request: the step is finished, a checkpoint written, and the exit code says what to do next."""

import os
import pathlib
import signal
import time
import unittest

import harness


class Signals(harness.RunTest):
    config = harness.llama_config(hidden_size=96, intermediate_size=256, head_dim=24, num_hidden_layers=3)
    recipe = {"max_steps": 40, "gradient_accumulation_steps": 4}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.reference = None

    def assert_resumes_exactly(self, output):
        if self.reference is None:
            type(self).reference = self.new_output()
            self.train(2, self.reference, **self.recipe)
        self.train(2, output, **self.recipe, resume="auto")
        self.assert_same_bits(harness.adapter(self.reference / "adapter"), harness.adapter(output / "adapter"))
        self.assert_same_rows(harness.steps(self.reference), harness.steps(output))

    def stopped_at(self, output):
        """The step of the one checkpoint, which the metrics end with too."""
        rows = harness.steps(output)
        self.assertEqual([p.name for p in harness.checkpoints(output)], [f"checkpoint-{len(rows):06}"])
        self.assertLess(len(rows), 40, "it stopped before its end")
        self.assertFalse((output / "adapter").exists(), "the run is not over yet")
        return len(rows)

    def stopped_by(self, who, number, expect):
        output = self.new_output()
        job = self.start(2, output, **self.recipe)
        self.assertTrue(job.wait_for_step(3), "the run was through before the signal")
        os.kill(job.process.pid if who == "mpirun" else job.rank_pids()[who], number)
        done = job.finish()
        self.assertEqual(done.code, expect, done)
        step = self.stopped_at(output)
        self.assertIn("signal", [kind for kind, at, _ in harness.events(output) if at == step])
        return output

    def test_usr2_to_mpirun(self):
        self.assert_resumes_exactly(self.stopped_by("mpirun", signal.SIGUSR2, 85))

    def test_usr1_to_one_rank_stops_all(self):
        self.assert_resumes_exactly(self.stopped_by(1, signal.SIGUSR1, 85))

    def test_term_to_one_rank(self):
        self.assert_resumes_exactly(self.stopped_by(0, signal.SIGTERM, 143))

    def test_int_to_one_rank(self):
        self.stopped_by(1, signal.SIGINT, 130)

    def test_max_time(self):
        output = self.new_output()
        done = self.start(2, output, max_steps=1000000, gradient_accumulation_steps=4, max_time=6).finish()
        self.assertEqual(done.code, 85, done)
        self.assertGreaterEqual(done.seconds, 6)
        rows = harness.steps(output)
        self.assertEqual([p.name for p in harness.checkpoints(output)], [f"checkpoint-{len(rows):06}"])

    def test_a_signal_before_the_first_step(self):
        """At any moment of the start: 85, and the next attempt does the whole run."""
        for delay in [0, 0.15, 0.4]:
            with self.subTest(delay=delay):
                output = self.new_output()
                job = self.start(2, output, **self.recipe)
                # From here on both ranks have blocked the signal: before, it kills a process like any other.
                # One list of them for both questions: the second rank may start between two.
                self.assertTrue(job.wait_for(lambda: [blocks_usr2(p) for p in job.rank_pids()] == [True, True]))
                time.sleep(delay)
                os.kill(job.process.pid, signal.SIGUSR2)
                done = job.finish()
                self.assertEqual(done.code, 85, done)
                self.assertEqual(done.sentences(), [])
        self.assert_resumes_exactly(output)

    def test_too_little_time(self):
        """Stopped in the first steps or before, with the code that asks to be started again."""
        output = self.new_output()
        done = self.start(2, output, **self.recipe, max_time=1, lora_dropout=0.1).finish()
        self.assertEqual(done.code, 85, done)
        self.train(2, output, **self.recipe, lora_dropout=0.1, resume="auto")
        self.assertEqual(harness.steps(output)["step"].tolist(), list(range(1, 41)))


def blocks_usr2(pid):
    try:
        status = pathlib.Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
    mask = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:")), 16)
    return bool(mask >> (signal.SIGUSR2 - 1) & 1)


if __name__ == "__main__":
    unittest.main()
