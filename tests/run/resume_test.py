"""Exact resume: a run that was killed and resumed ends with the bits of one that never stopped."""

import os
import random
import shutil
import time
import unittest

import h5py

import harness

SEED = int(os.environ.get("RANKTUNE_TEST_SEED", random.SystemRandom().randrange(10**6)))


class Resume(harness.RunTest):
    # Large enough that a step takes long enough to be killed in.
    config = harness.llama_config(hidden_size=96, intermediate_size=256, head_dim=24, num_hidden_layers=3)
    recipe = {"max_steps": 30, "save_steps": 3, "gradient_accumulation_steps": 4}

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.whole = None
        print(f"RANKTUNE_TEST_SEED={SEED}", flush=True)

    def uninterrupted(self, **flags):
        output = self.new_output()
        self.train(2, output, **{**self.recipe, **flags})
        return output

    def whole_run(self):
        """The folder of one uninterrupted run, made once."""
        if self.whole is None:
            type(self).whole = self.uninterrupted()
        return self.whole

    def copy_of_whole_run(self):
        output = self.new_output()
        shutil.copytree(self.whole_run(), output)
        return output

    def killed(self, after_step, wait, **flags):
        """The folder of a run that was killed some time after a step that is later than its first checkpoint."""
        for _ in range(5):
            output = self.new_output()
            job = self.start(2, output, **{**self.recipe, **flags})
            job.wait_for(lambda: len(harness.checkpoints(output)) > 0)
            job.wait_for_step(after_step)
            time.sleep(wait)
            if job.kill():
                return output
            after_step, wait = max(1, after_step - 8), wait / 2  # too late, it was through already
        raise AssertionError("the run was never caught before its end")

    def assert_equal_runs(self, reference, output):
        self.assert_same_bits(harness.adapter(reference / "adapter"), harness.adapter(output / "adapter"))
        self.assert_same_rows(harness.steps(reference), harness.steps(output))
        self.assertEqual(harness.steps(output)["step"].tolist(), list(range(1, 31)), "every step once")
        pairs = [(int(row["step"]), int(row["rank"])) for row in harness.table(output, "/train/ranks")]
        self.assertEqual(sorted(pairs), [(step, rank) for step in range(1, 31) for rank in range(2)])

    def test_killed_at_random_moments(self):
        generator = random.Random(SEED)
        reference = self.whole_run()
        for attempt in range(3):
            step, wait = generator.randint(3, 26), generator.uniform(0, 0.05)
            with self.subTest(attempt=attempt, seed=SEED, step=step, wait=wait):
                output = self.killed(step, wait)
                last = int(harness.checkpoints(output)[-1].name[-6:])
                done = self.train(2, output, **self.recipe, resume="auto")
                self.assert_equal_runs(reference, output)
                self.assertIn(("resume", last, f"checkpoint-{last:06}"), harness.events(output))
                self.assertNotIn("not bit-exact", done.errors)

    def test_eight_bit_moments(self):
        """Codes and absmax are in the checkpoint, bit for bit; the optimizer belongs to the recipe."""
        flags = {"optim": "adamw_8bit", "max_steps": 12, "r": 64}  # tensors of more than 4,096 elements
        reference, output = self.new_output(), self.new_output()
        self.train(2, reference, **{**self.recipe, **flags})
        shutil.copytree(reference, output, dirs_exist_ok=True)
        shutil.rmtree(output / "checkpoint-000012")
        shutil.rmtree(output / "adapter")
        with h5py.File(output / "checkpoint-000009" / "state.h5") as state:
            self.assertEqual(state["arrays/exp_avg"].dtype, "uint8")
            self.assertGreater(len(set(state["arrays/exp_avg"][()].tolist())), 100)
        other = self.train(2, output, **{**self.recipe, **flags, "optim": "adamw"}, resume="auto", expect=2)
        self.assertIn('optim was "adamw_8bit"', str(other))
        self.train(2, output, **{**self.recipe, **flags}, resume="auto")
        self.assert_same_bits(harness.adapter(reference / "adapter"), harness.adapter(output / "adapter"))

    def test_dropout_and_killed_twice(self):
        flags = {"lora_dropout": 0.2, "save_total_limit": 2}
        reference = self.uninterrupted(**flags)
        output = self.killed(7, 0, **flags)
        again = self.start(2, output, **{**self.recipe, **flags}, resume="auto")
        again.wait_for_step(17)
        again.kill()
        self.train(2, output, **{**self.recipe, **flags}, resume="auto")
        self.assert_equal_runs(reference, output)
        self.assertGreaterEqual([kind for kind, _, _ in harness.events(output)].count("resume"), 1)
        self.assertEqual([p.name for p in harness.checkpoints(output)], ["checkpoint-000027", "checkpoint-000030"])

    def test_a_finished_run_is_left_alone(self):
        output = self.copy_of_whole_run()
        before = harness.tree(output)
        done = self.train(2, output, **self.recipe, resume="auto")
        self.assertIn("nothing to do", done.output)
        self.assertEqual(harness.tree(output), before)

    def test_a_lost_export_is_made_again(self):
        output = self.copy_of_whole_run()
        before = harness.adapter(output / "adapter")
        for file in (output / "adapter").iterdir():
            file.unlink()
        (output / "adapter").rmdir()
        self.train(2, output, **self.recipe, resume="auto")
        self.assert_same_bits(before, harness.adapter(output / "adapter"))

    def test_killed_before_the_metrics_were_merged(self):
        """As between the export and the end: the adapter is there, metrics.h5 is not or is that of the start."""
        output = self.copy_of_whole_run()
        rows = harness.steps(output)
        (output / "metrics.h5").unlink()
        self.train(2, output, **self.recipe, resume="auto")
        self.assert_same_rows(rows, harness.steps(output))
        self.assertIn("nothing to do", self.train(2, output, **self.recipe, resume="auto").output)

    def test_a_damaged_checkpoint_gives_way_to_the_one_before(self):
        output = self.copy_of_whole_run()
        before = harness.adapter(output / "adapter")
        rows = harness.steps(output)
        newest = harness.checkpoints(output)[-1]
        state = bytearray((newest / "state.h5").read_bytes())
        state[len(state) // 2] ^= 0x40
        (newest / "state.h5").write_bytes(state)
        done = self.train(2, output, **self.recipe, resume="auto")
        self.assertIn("checkpoint-000030 is not used", done.errors)
        self.assertIn(("resume", 27, "checkpoint-000027"), harness.events(output))
        self.assert_same_bits(before, harness.adapter(output / "adapter"))
        self.assert_same_rows(rows, harness.steps(output))

    def test_a_named_checkpoint(self):
        output = self.copy_of_whole_run()
        before, rows = harness.adapter(output / "adapter"), harness.steps(output)
        self.train(2, output, **self.recipe, resume=output / "checkpoint-000012")
        self.assertIn(("resume", 12, "checkpoint-000012"), harness.events(output))
        self.assert_same_bits(before, harness.adapter(output / "adapter"))
        self.assert_same_rows(rows, harness.steps(output))

        (output / "checkpoint-000012" / "manifest.json").write_text("{}")
        done = self.train(2, output, expect=2, **self.recipe, resume=output / "checkpoint-000012")
        self.assertEqual(len(done.sentences()), 1, done)
        self.assertIn("checkpoint-000012", done.sentences()[0])

    def test_other_recipes_are_refused(self):
        output = self.uninterrupted(max_steps=6)
        before = harness.tree(output)
        done = self.train(2, output, expect=2, **{**self.recipe, "max_steps": 6}, learning_rate="1e-3", seed=5,
                          resume="auto")
        self.assertEqual(len(done.sentences()), 1, done)
        for part in ["learning_rate was 0.005, is 0.001", "seed was 3407, is 5"]:
            self.assertIn(part, done.sentences()[0])
        self.assertNotIn("weight_decay", done.sentences()[0])
        longer = self.train(2, output, expect=2, **{**self.recipe, "max_steps": 9}, resume="auto")
        self.assertIn("max_steps was 6, is 9", longer.sentences()[0])
        self.assertEqual(harness.tree(output), before)

    def test_a_constant_schedule_may_be_made_longer(self):
        flags = {"lr_scheduler_type": "constant"}
        reference = self.uninterrupted(**flags)
        output = self.uninterrupted(max_steps=10, **flags)
        self.train(2, output, **self.recipe, **flags, resume="auto")
        one, other = harness.steps(reference), harness.steps(output)
        self.assertEqual(one["tokens"].tolist(), other["tokens"].tolist())
        self.assertEqual(one["loss"].tolist(), other["loss"].tolist())
        self.assertEqual(one["grad_norm"].tolist(), other["grad_norm"].tolist())

    def test_a_second_run_into_the_same_folder_is_refused(self):
        output = self.uninterrupted(max_steps=3)
        before = harness.tree(output)
        done = self.train(2, output, expect=2, **{**self.recipe, "max_steps": 3})
        self.assertEqual(len(done.sentences()), 1, done)
        self.assertIn(f"{output} already holds a run", done.sentences()[0])
        self.assertEqual(harness.tree(output), before)

    def test_a_run_that_is_going_on_keeps_its_folder(self):
        output = self.new_output()
        job = self.start(2, output, **self.recipe)
        job.wait_for_step(2)
        done = self.start(2, output, **self.recipe, resume="auto").finish()
        self.assertNotEqual(done.code, 0, done)
        self.assertIn(str(output), done.errors)
        self.assertEqual(job.finish().code, 0)
        self.assertEqual(harness.steps(output)["step"].tolist(), list(range(1, 31)))

    def test_other_ranks_go_on_with_the_same_samples(self):
        reference = self.whole_run()
        output = self.killed(5, 0)
        done = self.train(1, output, **{**self.recipe, "gradient_accumulation_steps": 8}, resume="auto")
        self.assertIn("not bit-exact: world_size was 2, is 1", done.errors)
        one, other = harness.steps(reference), harness.steps(output)
        self.assertEqual(one["tokens"].tolist(), other["tokens"].tolist())
        self.assertLess(abs(one["loss"] - other["loss"]).max(), 1e-4)


if __name__ == "__main__":
    unittest.main()
