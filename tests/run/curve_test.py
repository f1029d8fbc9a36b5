"""Training step by step beside Transformers and PEFT, run live: the same adapter, the same rows, the same curve.

RANKTUNE_TEST_STEPS says how many steps (60 if it is not set; the release check takes 200). At the learning rate used
here two runs of PEFT whose adapters differ in the last bit stay within 1e-6 of each other over 200 steps; at five times
that rate they part, and a comparison would say nothing."""

import json
import os
import unittest

import numpy as np

import harness
import peft_curve

STEPS = int(os.environ.get("RANKTUNE_TEST_STEPS", "60"))
WINDOW = 4


class Curve(peft_curve.CurveTest):
    rows = 40  # whole windows of 4

    def compare(self, model, adapter, data, rows, longest=256, learning_rate=1e-3):
        found, expected, parts = self.curves(model, adapter, data, rows, STEPS, WINDOW, longest, learning_rate)
        loss = np.abs(found["loss"] - expected[:, 0]).max()
        norm = np.abs(found["grad_norm"] / expected[:, 1] - 1).max()
        print(f"{STEPS} steps, loss {expected[0, 0]:.4f} to {expected[-1, 0]:.4f}: largest difference {loss:.1e}, gradient "
              f"norm {norm:.1e} relative, A {parts['lora_A']:.1e}, B {parts['lora_B']:.1e}", flush=True)
        self.assertGreater(expected[:, 1].max(), 1.0, "clipping has to happen")
        self.assertLess(loss, 2e-5)
        self.assertLess(norm, 1e-4)
        self.assertLess(max(parts.values()), 1e-4)

    def small(self, config, name, **adapter):
        model = harness.make_model(self.folder / name, config)
        init = harness.make_adapter(self.folder / f"{name}-adapter", config, **adapter)
        self.compare(model, init, self.data, json.loads(self.data.read_text()))

    def test_llama_with_alpha_twice_r(self):
        self.small(harness.llama_config(), "llama", r=8, alpha=16)

    def test_qwen3_with_rslora(self):
        self.small(harness.qwen3_config(tie_word_embeddings=True), "qwen3", r=6, alpha=9, rslora=True)

    def test_real_model_and_rows(self):
        model = harness.TEST_DATA / "models/stories260K"
        alpaca = harness.TEST_DATA / "alpaca/alpaca_cleaned_5000.json"
        if not (model.exists() and alpaca.exists()):
            self.skipTest(f"RANKTUNE_TEST_DATA ({harness.TEST_DATA}) holds no models/stories260K and alpaca rows")
        rows = [row for row in json.loads(alpaca.read_text()) if len(row["output"]) < 300][:STEPS * WINDOW]
        data = harness.write_json(self.folder / "alpaca.json", rows)
        config = json.loads((model / "config.json").read_text())
        config.setdefault("head_dim", config["hidden_size"] // config["num_attention_heads"])
        init = harness.make_adapter(self.folder / "stories-adapter", config, r=16, alpha=32)
        self.compare(model, init, data, rows, longest=192)


if __name__ == "__main__":
    unittest.main()
