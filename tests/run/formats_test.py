"""Dataset formats from end to end: the same rows in every form of file make the same step."""

import gzip
import json
import unittest

import harness


def alpaca_text(row):
    """What --prompt_template alpaca makes of a row with an input, up to the answer."""
    return ("Below is an instruction that describes a task, paired with an input that provides further context. "
            "Write a response that appropriately completes the request.\n\n### Instruction:\n" + row["instruction"]
            + "\n\n### Input:\n" + row["input"] + "\n\n### Response:\n")


class Formats(harness.RunTest):
    rows = 8

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.alpaca = [{**row, "input": row["input"] or "none"} for row in harness.make_rows(cls.rows)]
        harness.write_json(cls.data, cls.alpaca)

    def loss(self, dataset, **flags):
        """Loss and targets of the first step over all rows, in their order, and what was printed."""
        output = self.new_output()
        done = self.train(2, output, dataset=dataset, max_steps=1, gradient_accumulation_steps=4, shuffle=False, **flags)
        step = harness.steps(output)[0]
        return float(step["loss"]), int(step["target_tokens"]), done.output

    def file(self, name, rows, pack=lambda content: content):
        text = "\n".join(map(json.dumps, rows)) if ".jsonl" in name else json.dumps(rows)
        path = self.folder / name
        path.write_bytes(pack(text.encode()))
        return path

    def test_the_same_text_makes_the_same_step(self):
        loss, targets, output = self.loss(self.data, prompt_template="alpaca")
        self.assertIn("8 samples (alpaca)", output)
        pairs = [{"prompt": alpaca_text(row), "completion": row["output"]} for row in self.alpaca]
        first = self.file("first.jsonl.gz", pairs[:3], gzip.compress)
        second = self.file("second.json", pairs[3:] + pairs)
        again = self.loss(f"{first},{second}", dataset_limit=8)
        self.assertEqual(again[:2], (loss, targets))
        self.assertIn("8 samples (prompt_completion)", again[2])
        texts = self.file("texts.json", [{"text": pair["prompt"] + pair["completion"]} for pair in pairs])
        again = self.loss(texts, dataset_format="text")
        self.assertEqual(again[:2], (loss, targets))

    def test_responses_only(self):
        """Fewer targets over the same tokens, the same for every template that ends in the output."""
        everything = self.loss(self.data, prompt_template="alpaca")
        loss, targets, _ = self.loss(self.data, prompt_template="alpaca", train_on_responses_only=True)
        self.assertLess(targets, everything[1] / 2)
        self.assertNotEqual(loss, everything[0])
        pairs = self.file("pairs.jsonl", [{"prompt": alpaca_text(row), "completion": row["output"]} for row in self.alpaca])
        self.assertEqual(self.loss(pairs, train_on_responses_only=True)[:2], (loss, targets))
        form = self.folder / "form.txt"
        form.write_text(alpaca_text({"instruction": "{instruction}", "input": "{input}"}) + "{output}\n")
        self.assertEqual(self.loss(self.data, prompt_template=form, train_on_responses_only=True)[:2], (loss, targets))

    def test_plain_text(self):
        """Chunks as rows of text have them, which the program gives their EOS in its turn."""
        from tokenizers import Tokenizer
        tokenizer = Tokenizer.from_file(str(self.model / "tokenizer.json"))
        text = "\n\n".join(row["output"] for row in self.alpaca)
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        (self.folder / "book.txt").write_text(text)
        chunks = [ids[begin:begin + 20] for begin in range(0, len(ids) - 5, 15)]
        self.assertGreater(len(chunks), 4)
        flags = {"dataset": None, "raw_text_file": self.folder / "book.txt", "chunk_size": 20, "stride": 5}
        shown = self.train(2, self.new_output(), show_sample=1000, shuffle=False, **flags).output
        found = [[]]
        for line in shown.splitlines():
            if line.startswith("sample "):
                found.append([])
            fields = line.replace("*", " ", 1).split(maxsplit=2)
            if len(fields) == 3 and fields[0].isdigit() and fields[1].isdigit():
                found[-1].append(int(fields[1]))
        self.assertEqual(found[1:], [chunk + [tokenizer.token_to_id("<|end|>")] for chunk in chunks])
        self.train(2, self.new_output(), max_steps=1, **flags)

    def test_a_template_for_other_rows_is_refused(self):
        texts = self.file("only.json", [{"text": "a"}])
        done = self.start(2, self.new_output(), dataset=texts, prompt_template="alpaca").finish()
        self.assertEqual((done.code, len(done.sentences())), (2, 1), done)
        self.assertIn("--prompt_template alpaca", done.sentences()[0])


if __name__ == "__main__":
    unittest.main()
