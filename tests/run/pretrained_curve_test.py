"""Training of a real pretrained model (the folder RANKTUNE_TEST_MODEL) beside Transformers and PEFT: short alpaca rows,
fp32 on the CPU, both from the same adapter.

RANKTUNE_TEST_STEPS says how many steps (5 if it is not set; docs/models.md shows 200) and RANKTUNE_TEST_CURVE names a
file for both curves as CSV, which docs/figures/curve.py draws; the one of QLoRA gets the name NAME.4bit.csv."""

import csv
import json
import os
import pathlib
import unittest

import numpy as np

import harness
import peft_curve

STEPS = int(os.environ.get("RANKTUNE_TEST_STEPS", "5"))
WINDOW = 2
LONGEST = 64  # tokens; the shortest of the rows has 51
MODEL = pathlib.Path(os.environ.get("RANKTUNE_TEST_MODEL", "") or "/nonexistent")
CURVE = os.environ.get("RANKTUNE_TEST_CURVE", "")


def write_curve(path, found, expected):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "loss", "reference_loss", "grad_norm", "reference_grad_norm"])
        for step, (row, (loss, norm, _, _)) in enumerate(zip(found, expected), 1):
            writer.writerow([step, row["loss"], loss, row["grad_norm"], norm])


class PretrainedCurve(peft_curve.CurveTest):
    def short_rows(self, alpaca):
        """Rows of the file in its order that fit LONGEST tokens whole, EOS included."""
        tokenizer = peft_curve.AutoTokenizer.from_pretrained(MODEL)
        rows = []
        for row in json.loads(alpaca.read_text()):
            if len(tokenizer(peft_curve.prompt(row, tokenizer.eos_token)).input_ids) <= LONGEST:
                rows.append(row)
            if len(rows) == STEPS * WINDOW:
                break
        return rows[:len(rows) // WINDOW * WINDOW]

    def curves_of_short_rows(self, four_bits):
        alpaca = harness.TEST_DATA / "alpaca/alpaca_cleaned_5000.json"
        for needed in (MODEL, alpaca):
            if not needed.exists():
                self.skipTest(f"{needed} is not there (RANKTUNE_TEST_MODEL, RANKTUNE_TEST_DATA)")
        rows = self.short_rows(alpaca)
        data = harness.write_json(self.folder / "short.json", rows)
        config = json.loads((MODEL / "config.json").read_text())
        adapter = harness.make_adapter(self.new_output(), config, r=16, alpha=32, size_of_b=0.005)
        found, expected, parts = self.curves(MODEL, adapter, data, rows, STEPS, WINDOW, LONGEST, learning_rate=2e-4,
                                             four_bits=four_bits)
        if CURVE:
            write_curve(f"{CURVE}.4bit.csv" if four_bits else CURVE, found, expected)
        loss = np.abs(found["loss"] / expected[:, 0] - 1).max()
        norm = np.abs(found["grad_norm"] / expected[:, 1] - 1).max()
        print(f"{STEPS} steps on {len(rows)} rows, loss {expected[0, 0]:.4f} to {expected[-1, 0]:.4f}: largest relative "
              f"difference {loss:.1e}, gradient norm {norm:.1e}, A {parts['lora_A']:.1e}, B {parts['lora_B']:.1e}", flush=True)
        return found, expected, loss, norm, parts

    def test_short_alpaca_rows(self):
        _, _, loss, norm, parts = self.curves_of_short_rows(four_bits=False)
        self.assertLess(loss, 1e-4)
        self.assertLess(norm, 1e-4)
        self.assertLess(max(parts.values()), 1e-4)

    def test_four_bits(self):
        """QLoRA beside PEFT and bitsandbytes, whose CPU code rounds some of the blocks' absmax another way."""
        found, expected, loss, _, _ = self.curves_of_short_rows(four_bits=True)
        width = min(20, STEPS)
        smooth = [np.convolve(curve, np.ones(width) / width, "valid") for curve in (found["loss"], expected[:, 0])]
        self.assertLess(np.abs(smooth[0] / smooth[1] - 1).max(), 5e-3)
        self.assertLess(loss, 2e-2)


if __name__ == "__main__":
    unittest.main()
