"""The committed demo dataset is what its script makes, and every row is an alpaca row that can be trained on."""

import json
import subprocess
import sys
import tempfile
import unittest
from collections import Counter
from pathlib import Path

DEMO = Path(__file__).resolve().parents[2] / "env" / "demo"


class DemoData(unittest.TestCase):
    def setUp(self):
        self.text = (DEMO / "alpaca_demo.json").read_text(encoding="utf-8")
        self.rows = json.loads(self.text)

    def test_script_makes_the_committed_file(self):
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder) / "made.json"
            subprocess.run([sys.executable, DEMO / "make_demo_data.py", made], check=True, stdout=subprocess.DEVNULL)
            self.assertEqual(made.read_text(encoding="utf-8"), self.text)

    def test_rows_are_alpaca_rows(self):
        for row in self.rows:
            self.assertEqual(sorted(row), ["input", "instruction", "output"])
            self.assertTrue(all(isinstance(value, str) for value in row.values()), row)
            self.assertTrue(row["instruction"].strip() and row["output"].strip(), row)
            self.assertEqual(row["output"], row["output"].strip())

    def test_a_few_hundred_varied_rows(self):
        self.assertTrue(300 <= len(self.rows) <= 400, len(self.rows))
        keys = Counter((row["instruction"], row["input"]) for row in self.rows)
        self.assertEqual(keys.most_common(1)[0][1], 1)
        with_input = sum(bool(row["input"]) for row in self.rows)
        self.assertTrue(0.3 < with_input / len(self.rows) < 0.7, with_input)

    def test_sums_are_right(self):
        checked = 0
        for row in self.rows:
            left, _, right = row["output"].partition(" = ")
            if row["instruction"].startswith("What is ") and " + " in left:
                self.assertEqual(sum(map(int, left.split(" + "))), int(right))
                checked += 1
        self.assertGreaterEqual(checked, 10)


if __name__ == "__main__":
    unittest.main()
