"""Evaluation: the same number on any number of ranks, where it must be, and resumed; packing: the same samples and sums."""

import signal
import unittest

import numpy as np

import harness


def evaluations(output):
    return harness.table(output, "/eval")


class Evaluation(harness.RunTest):
    rows = 30

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.adapter = harness.make_adapter(cls.folder / "start", cls.config)
        cls.other = harness.write_json(cls.folder / "other.json", harness.make_rows(25, seed=3))

    def evaluated(self, ranks, **flags):
        output = self.new_output()
        self.train(ranks, output, **{"init_adapter": self.adapter, "r": None, "lora_alpha": None, "learning_rate": 0,
                                     "max_steps": 1, **flags})
        return output, evaluations(output)

    def test_same_bits_on_any_number_of_ranks(self):
        _, one = self.evaluated(1, eval_dataset=self.other)
        self.assertEqual((one["step"].tolist(), len(one)), ([1], 1))
        self.assertEqual(one["perplexity"][0], np.exp(one["loss"][0]))
        for ranks in [2, 3]:
            _, other = self.evaluated(ranks, eval_dataset=self.other)
            self.assertEqual(other["loss"].tolist(), one["loss"].tolist())
            self.assertEqual(other["target_tokens"].tolist(), one["target_tokens"].tolist())
        # One batch, which rank 1 has none of: the same but for rounding.
        _, other = self.evaluated(2, eval_dataset=self.other, per_device_eval_batch_size=25)
        np.testing.assert_allclose(other["loss"], one["loss"], rtol=1e-6)

    def test_it_is_the_loss_of_the_samples(self):
        """One step over all rows of the file has the loss of all rows of the file."""
        output, rows = self.evaluated(1, dataset=self.other, eval_dataset=self.other, gradient_accumulation_steps=25)
        step = harness.steps(output)[0]
        self.assertEqual(rows["target_tokens"][0], step["target_tokens"])
        np.testing.assert_allclose(rows["loss"][0], step["loss"], rtol=1e-6)

    def test_dropout_is_off(self):
        flags = dict(max_steps=2, learning_rate=0, eval_dataset=self.other, random_state=5)
        losses = []
        for dropout in [0, 0.4]:
            output = self.new_output()
            self.train(2, output, lora_dropout=dropout, **flags)
            losses.append(evaluations(output)["loss"].tolist())
        self.assertEqual(*losses)

    def test_held_out_samples_are_not_trained_on(self):
        def tokens(**flags):
            output = self.new_output()
            done = self.train(1, output, learning_rate=0, gradient_accumulation_steps=1, num_train_epochs=1, **flags)
            return harness.steps(output), done, output
        everything, _, _ = tokens()
        rest, done, output = tokens(eval_split=0.2, eval_steps=10)
        self.assertEqual((len(everything), len(rest)), (30, 24))
        self.assertIn("held out of the dataset: 6 samples", done.output)
        self.assertIn("evaluation after step 10: loss", done.output)
        rows = evaluations(output)
        self.assertEqual(rows["step"].tolist(), [10, 20, 24])
        held = everything["target_tokens"].sum() - rest["target_tokens"].sum()
        self.assertEqual(rows["target_tokens"].tolist(), [held] * 3)

    def signal(self, job):
        for pid in job.rank_pids():
            try:
                harness.os.kill(pid, signal.SIGUSR2)
            except ProcessLookupError:
                pass

    def test_a_stop_within_an_evaluation(self):
        """The last step is done, its evaluation is not: the run can be resumed for that alone."""
        many = harness.write_json(self.folder / "many.json", harness.make_rows(6000, seed=4))
        flags = dict(max_steps=1, eval_dataset=many, per_device_eval_batch_size=1)
        output = self.new_output()
        job = self.start(2, output, **flags)
        self.assertTrue(job.wait_for_step(1))
        self.signal(job)
        self.assertEqual(job.finish().code, 85)
        self.assertEqual((len(harness.steps(output)), len(evaluations(output))), (1, 0))
        self.assertFalse((output / "adapter").exists())
        self.train(2, output, resume="auto", **flags)
        self.assertEqual(evaluations(output)["step"].tolist(), [1])
        self.assertTrue((output / "adapter").exists())

    def test_resumed_evaluations_are_those_of_one_run(self):
        flags = dict(max_steps=9, eval_split=5, eval_steps=2, save_steps=3)
        whole = self.new_output()
        self.train(2, whole, **flags)
        self.assertEqual(evaluations(whole)["step"].tolist(), [2, 4, 6, 8, 9])
        stopped = self.new_output()
        job = self.start(2, stopped, **flags)
        self.assertTrue(job.wait_for_step(5))
        self.signal(job)
        done = job.finish()
        self.assertIn(done.code, [0, 85], done)
        self.train(2, stopped, resume="auto", **flags)
        for name in ["step", "loss", "perplexity", "target_tokens"]:
            self.assertEqual(evaluations(stopped)[name].tolist(), evaluations(whole)[name].tolist(), name)
        self.assert_same_bits(harness.adapter(stopped / "adapter"), harness.adapter(whole / "adapter"))

    def eval_command(self, ranks, expect=0, **flags):
        words = ["eval", *harness.flags_of({"model_name": self.model, "device": "cpu", "max_seq_length": 256, **flags})]
        job = harness.Job(ranks, words, self.environment(), self.folder)
        self.addCleanup(job.close)
        done = job.finish()
        self.assertEqual(done.code, expect, done)
        return done

    def figures(self, done):
        found = {}
        for line in done.output.splitlines():
            for name in ["loss", "perplexity", "target tokens", "samples"]:
                if line.strip().startswith(name + " "):
                    found[name] = float(line.split()[-1])
        return found

    def test_the_command_gives_the_number_of_the_run(self):
        output = self.new_output()
        self.train(2, output, max_steps=6, eval_split=0.2, lora_dropout=0.2)
        row = evaluations(output)[0]
        for ranks in [1, 3]:
            figures = self.figures(self.eval_command(ranks, init_adapter=output / "adapter", dataset=self.data, eval_split=0.2))
            self.assertEqual(figures, {"loss": row["loss"], "perplexity": row["perplexity"],
                                       "target tokens": row["target_tokens"], "samples": 6})
        base = self.figures(self.eval_command(2, dataset=self.data, eval_split=0.2))
        self.assertGreater(base["loss"], row["loss"] + 0.01)
        self.assertEqual(base["target tokens"], row["target_tokens"])

    def test_the_command_equals_transformers(self):
        import torch
        from transformers import AutoModelForCausalLM, AutoTokenizer
        model, tokenizer = AutoModelForCausalLM.from_pretrained(self.model), AutoTokenizer.from_pretrained(self.model)
        figures = self.figures(self.eval_command(2, eval_dataset=self.other, prompt_template="alpaca"))
        head = "Below is an instruction that describes a task"
        with_input = head + (", paired with an input that provides further context. Write a response that appropriately "
                             "completes the request.\n\n### Instruction:\n{instruction}\n\n### Input:\n{input}\n\n"
                             "### Response:\n{output}<|end|>")
        without = head + (". Write a response that appropriately completes the request.\n\n### Instruction:\n"
                          "{instruction}\n\n### Response:\n{output}<|end|>")
        nll, targets = 0.0, 0
        with torch.no_grad():
            for row in harness.make_rows(25, seed=3):
                ids = torch.tensor([tokenizer((with_input if row["input"] else without).format(**row))["input_ids"]])
                nll += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
                targets += ids.shape[1] - 1
        self.assertEqual(figures["target tokens"], targets)
        np.testing.assert_allclose(figures["loss"], nll / targets, rtol=1e-5)

    def test_the_command_refuses_what_it_cannot_do(self):
        for flags, part in [({}, "needs something to evaluate"),
                            ({"eval_dataset": self.folder / "gone.json"}, "gone.json")]:
            done = self.eval_command(2, expect=2, **flags)
            self.assertEqual(len(done.sentences()), 1, done)
            self.assertIn(part, done.sentences()[0])

    def test_wrong_combinations(self):
        for flags, part in [({"eval_split": 30}, "--eval_split 30 leaves nothing to train on"),
                            ({"eval_steps": 3}, "--eval_steps has nothing to evaluate")]:
            done = self.train(2, self.new_output(), expect=2, max_steps=1, **flags)
            self.assertEqual(len(done.sentences()), 1, done)
            self.assertIn(part, done.sentences()[0])


class Packing(harness.RunTest):
    rows = 43

    def packed(self, ranks, accumulation, **flags):
        output = self.new_output()
        done = self.train(ranks, output, gradient_accumulation_steps=accumulation, packing=True,
                          **{"max_steps": 8, "max_seq_length": 1000, **flags})
        return output, harness.steps(output), done

    def test_packed_samples_have_the_loss_of_separate_ones(self):
        """One step over all samples: whatever pack a sample lies in, it has the same loss and gradient."""
        _, packed, _ = self.packed(2, 20, max_steps=1)
        output = self.new_output()
        self.train(1, output, gradient_accumulation_steps=43, max_steps=1, max_tokens_per_pass=1)  # a sample a pass
        alone = harness.steps(output)
        for name in ["samples", "tokens", "target_tokens", "epoch"]:
            self.assertEqual(packed[name].tolist(), alone[name].tolist(), name)
        np.testing.assert_allclose(packed["loss"], alone["loss"], rtol=1e-6)
        np.testing.assert_allclose(packed["grad_norm"], alone["grad_norm"], rtol=1e-5)

    def test_packs_do_not_depend_on_the_ranks(self):
        _, one, done = self.packed(1, 6)
        self.assertRegex(done.output, r"packing +\d+ packs of at most 1000 tokens in the first epoch, "
                                      r"[3-6]\.\d samples each, [89]\d\.\d % full")
        self.assertIn("6 packs = 1 rank x", done.output)
        for ranks, accumulation in [(2, 3), (3, 2)]:
            _, other, _ = self.packed(ranks, accumulation)
            for name in ["samples", "tokens", "target_tokens", "epoch"]:
                self.assertEqual(other[name].tolist(), one[name].tolist(), name)
            np.testing.assert_allclose(other["loss"], one["loss"], rtol=0, atol=2e-5)

    def test_an_epoch_has_every_sample_once_in_full_packs(self):
        _, rows, _ = self.packed(2, 1, max_steps=None, num_train_epochs=2)
        self.assertEqual(rows["samples"].sum(), 2 * self.rows)
        self.assertEqual(rows["epoch"][-1], 2.0)
        self.assertIn(1.0, rows["epoch"])
        self.assertLessEqual(rows["tokens"].max(), 2 * 1000)
        self.assertGreater(rows["samples"].max(), 8)

    def test_a_resumed_run_has_the_same_bits(self):
        flags = dict(num_train_epochs=2, max_steps=None, save_steps=2, max_seq_length=1000)
        whole, rows, _ = self.packed(2, 1, **flags)
        killed = self.new_output()
        job = self.start(2, killed, gradient_accumulation_steps=1, packing=True, **flags)
        self.assertTrue(job.wait_for(lambda: harness.checkpoints(killed)))
        job.kill()
        self.train(2, killed, gradient_accumulation_steps=1, packing=True, resume="auto", **flags)
        self.assert_same_rows(rows, harness.steps(killed))
        self.assert_same_bits(harness.adapter(killed / "adapter"), harness.adapter(whole / "adapter"))
        refused = self.train(2, killed, expect=2, gradient_accumulation_steps=1, resume="auto", **flags)
        self.assertIn("packing was 1000, is null", refused.errors)


if __name__ == "__main__":
    unittest.main()
