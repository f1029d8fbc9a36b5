"""The same step on any layout: ranks x accumulation, passes of any size, a window that is not full."""

import unittest

import numpy as np

import harness


class Layouts(harness.RunTest):
    rows = 43  # an epoch ends with a window of 3 of 8 samples

    def run_layout(self, ranks, accumulation, **flags):
        output = self.new_output()
        self.train(ranks, output, gradient_accumulation_steps=accumulation, **{"max_steps": 8, **flags})
        return output

    def assert_same_training(self, reference, output):
        one, other = harness.steps(reference), harness.steps(output)
        for name in ["step", "epoch", "samples", "tokens", "target_tokens", "learning_rate"]:
            self.assertEqual(one[name].tolist(), other[name].tolist(), name)
        np.testing.assert_allclose(other["loss"], one["loss"], rtol=0, atol=2e-5)
        np.testing.assert_allclose(other["grad_norm"], one["grad_norm"], rtol=1e-5)
        trained, expected = harness.adapter(output / "adapter"), harness.adapter(reference / "adapter")
        for name, values in expected.items():
            np.testing.assert_allclose(trained[name], values, rtol=0, atol=1e-4 * np.abs(values).max(), err_msg=name)

    def test_ranks_and_accumulation_can_be_traded(self):
        reference = self.run_layout(1, 8)
        rows = harness.steps(reference)
        self.assertEqual(rows["samples"].tolist(), [8, 8, 8, 8, 8, 3, 8, 8], "the epoch's last window stands alone")
        self.assertEqual(rows["epoch"][5], 1.0)
        self.assertGreater(rows["grad_norm"].min(), 1e-3)
        self.assertLess(rows["loss"][-1], rows["loss"][0])
        for ranks, accumulation in [(2, 4), (4, 2)]:
            with self.subTest(ranks=ranks, accumulation=accumulation):
                self.assert_same_training(reference, self.run_layout(ranks, accumulation))
        with self.subTest("micro-batches of 2"):
            self.assert_same_training(reference, self.run_layout(2, 2, per_device_train_batch_size=2))
        with self.subTest("a sample a pass"):
            self.assert_same_training(reference, self.run_layout(2, 4, max_tokens_per_pass=64))

    def test_dropout_does_not_depend_on_the_layout(self):
        reference = self.run_layout(1, 8, lora_dropout=0.3)
        self.assert_same_training(reference, self.run_layout(4, 2, lora_dropout=0.3))
        with self.subTest("recomputed, in small passes"):
            self.assert_same_training(reference, self.run_layout(2, 4, lora_dropout=0.3, max_tokens_per_pass=150,
                                                                 use_gradient_checkpointing="true"))
        plain = self.run_layout(2, 4)
        self.assertFalse(np.allclose(harness.steps(plain)["loss"][1:], harness.steps(reference)["loss"][1:], atol=1e-4),
                         "dropout has to do something")

    def test_three_ranks(self):
        reference = self.run_layout(1, 6)
        output = self.run_layout(3, 2)
        self.assert_same_training(reference, output)
        self.assertEqual(harness.steps(output)["samples"].tolist(), [6, 6, 6, 6, 6, 6, 6, 1])
        # The window of one sample leaves two ranks without work.
        last = [row for row in harness.table(output, "/train/ranks") if row["step"] == 8]
        self.assertEqual(sorted(row["tokens"] > 0 for row in last), [False, False, True])

    def test_order_depends_on_seed_and_epoch_alone(self):
        """One sample a step shows the order; every other layout takes the same samples in windows of it."""
        single = harness.steps(self.run_layout(1, 1, max_steps=86, learning_rate=0))["tokens"]
        first, second = single[:43], single[43:]
        self.assertEqual(sorted(first), sorted(second), "each epoch has every sample once")
        self.assertNotEqual(first.tolist(), second.tolist(), "each epoch has an order of its own")

        windows = [int(first[i:i + 8].sum()) for i in range(0, 43, 8)] + [int(second[:8].sum()), int(second[8:16].sum())]
        for ranks, accumulation in [(2, 4), (4, 2)]:
            output = self.run_layout(ranks, accumulation)
            self.assertEqual(harness.steps(output)["tokens"].tolist(), windows)
            # Rank r holds the r-th share of the window.
            shares = {(row["step"], row["rank"]): row["tokens"] for row in harness.table(output, "/train/ranks")}
            for rank in range(ranks):
                share = first[rank * accumulation:(rank + 1) * accumulation]
                self.assertEqual(shares[(1, rank)], share.sum())

        other_seed = harness.steps(self.run_layout(1, 8, seed=7, max_steps=6))["tokens"].tolist()
        self.assertNotEqual(other_seed, windows[:6])
        in_file_order = harness.steps(self.run_layout(1, 1, shuffle=False, max_steps=86, learning_rate=0))["tokens"]
        self.assertEqual(in_file_order[:43].tolist(), in_file_order[43:].tolist())
        self.assertEqual(sorted(in_file_order[:43]), sorted(first))


class FourBits(Layouts):
    """QLoRA: the same quantised base on every rank, whoever read the tensor."""
    config = harness.llama_config(hidden_size=64, intermediate_size=128, head_dim=16)

    test_dropout_does_not_depend_on_the_layout = test_three_ranks = None

    def test_ranks_and_accumulation_can_be_traded(self):
        reference = self.run_layout(1, 4, load_in_4bit=True)
        self.assert_same_training(reference, self.run_layout(2, 2, load_in_4bit=True, use_gradient_checkpointing="true"))
        whole = harness.steps(self.run_layout(1, 4))["loss"][0]
        first = harness.steps(reference)["loss"][0]
        self.assertNotAlmostEqual(first, whole, delta=1e-6, msg="4 bits have to change something")

    def test_what_does_not_fit_is_refused(self):
        model = self.folder / "uneven"
        harness.make_model(model, harness.llama_config())
        done = self.train(1, self.new_output(), expect=2, model_name=model, load_in_4bit=True)
        self.assertIn("hidden_size = 48 is not a multiple of 64, which 4-bit weights need", done.sentences()[0])


if __name__ == "__main__":
    unittest.main()
