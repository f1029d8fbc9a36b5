"""ranktune generate: greedily it writes what Transformers' generate writes, token by token."""

import os
import pathlib
import subprocess
import unittest

import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

import harness

REAL_MODEL = pathlib.Path(os.environ.get("RANKTUNE_TEST_MODEL") or "/nonexistent")
PROMPTS = ["seven birds sang", "name three colours of winter light", "write one line that explains why bread rises"]
MULTIBYTE = "naïve – 雨が降る 🌧️ "


class Generate(harness.RunTest):
    def generate(self, expect=0, launcher=(), **flags):
        flags = {"model_name": self.model, "device": "cpu", **flags}
        words = [*launcher, harness.BINARY, "generate", *harness.flags_of(flags)]
        done = subprocess.run(words, env=self.environment(), cwd=self.folder, capture_output=True, timeout=120)
        finished = harness.Finished(done.returncode, done.stdout.decode(), done.stderr.decode(errors="replace"), 0)
        self.assertEqual(finished.code, expect, finished)
        return finished

    def reference(self, prompt, tokens, model=None, adapter=None):
        model = model or self.model
        network = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
        if adapter:
            network = PeftModel.from_pretrained(network, adapter).eval()
        tokenizer = AutoTokenizer.from_pretrained(model)
        ids = torch.tensor([tokenizer(prompt).input_ids])
        with torch.no_grad():
            out = network.generate(input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False,
                                   max_new_tokens=tokens, pad_token_id=0)
        return tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True) + "\n"

    def assert_as_transformers(self, prompt, tokens=48, model=None, adapter=None):
        found = self.generate(model_name=model or self.model, adapter=adapter, prompt=prompt, raw=True,
                              max_new_tokens=tokens)
        self.assertEqual(found.output, self.reference(prompt, tokens, model, adapter))

    def test_every_kind_of_model(self):
        window = {"sliding_window": 16, "use_sliding_window": True, "max_window_layers": 0}
        rope = {"rope_type": "llama3", "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32}
        dynamic = {"rope_type": "dynamic", "factor": 2.0}
        kinds = {"llama3": harness.llama_config(rope_scaling=rope),
                 "dynamic": harness.llama_config(rope_scaling=dynamic),
                 "qwen3": harness.qwen3_config(tie_word_embeddings=True),
                 "qwen2": {**harness.qwen2_config(), **window},
                 "mistral": harness.llama_config(architectures=["MistralForCausalLM"], model_type="mistral",
                                                 sliding_window=16)}
        for seed, (name, config) in enumerate(kinds.items()):
            with self.subTest(name):
                folder = harness.make_model(self.folder / name, config, seed=seed)
                self.assert_as_transformers(MULTIBYTE + PROMPTS[seed % 3], model=folder)

    def test_with_an_adapter(self):
        adapter = harness.make_adapter(self.folder / "adapter", self.config, size_of_b=0.3)
        self.assert_as_transformers(PROMPTS[0], adapter=adapter)
        self.assertNotEqual(self.generate(prompt=PROMPTS[0], raw=True, adapter=adapter).output,
                            self.generate(prompt=PROMPTS[0], raw=True).output)

    def test_the_prompt_of_training(self):
        from_unsloth = ("Below is an instruction that describes a task, paired with an input that provides further "
                        "context. Write a response that appropriately completes the request.\n\n    ### Instruction:\n"
                        "    {}\n\n    ### Input:\n    {}\n\n    ### Response:\n    ")
        answer = self.generate(prompt="the cat", input="a mat", max_new_tokens=20).output
        self.assertEqual(answer, self.reference(from_unsloth.format("the cat", "a mat"), 20))
        template = self.folder / "template.txt"
        template.write_text("Q: {instruction}\nA: {output}")
        answer = self.generate(prompt="the cat", prompt_template=template, max_new_tokens=20).output
        self.assertEqual(answer, self.reference("Q: the cat\nA: ", 20))

    def test_many_prompts_of_a_file(self):
        file = self.folder / "prompts.txt"
        file.write_text("\n".join(PROMPTS) + "\n\n")
        text = self.generate(prompt_file=file, raw=True, max_new_tokens=12).output
        expected = "\n".join(f">>> {prompt}\n{self.reference(prompt, 12)}" for prompt in PROMPTS)
        self.assertEqual(text, expected)

    def test_it_stops_at_the_end_of_text(self):
        whole = self.reference(PROMPTS[1], 40)
        tokenizer = AutoTokenizer.from_pretrained(self.model)
        network = AutoModelForCausalLM.from_pretrained(self.model, dtype=torch.float32)
        ids = torch.tensor([tokenizer(PROMPTS[1]).input_ids])
        new = network.generate(input_ids=ids, do_sample=False, max_new_tokens=40)[0, ids.shape[1]:].tolist()
        (self.model / "generation_config.json").write_text('{"eos_token_id": [0, %d]}' % new[9])
        try:
            cut = self.generate(prompt=PROMPTS[1], raw=True, max_new_tokens=40).output
        finally:
            (self.model / "generation_config.json").unlink()
        self.assertEqual(cut, tokenizer.decode(new[:new.index(new[9])]) + "\n")
        self.assertLess(len(cut), len(whole))

    def test_drawing(self):
        def drawn(**flags):
            return self.generate(prompt=PROMPTS[0], raw=True, max_new_tokens=24, temperature=1.5, **flags).output

        self.assertEqual(drawn(seed=1), drawn(seed=1))
        self.assertNotEqual(drawn(seed=1), drawn(seed=2))
        self.assertEqual(drawn(top_k=1), self.reference(PROMPTS[0], 24))

    def test_what_is_refused(self):
        def refused(**flags):
            return "\n".join(self.generate(expect=2, **flags).sentences())

        self.assertIn("give --prompt or --prompt_file", refused())
        self.assertIn("give one of them", refused(prompt="a", prompt_file="b"))
        self.assertIn("--learning_rate means nothing to ranktune generate", refused(prompt="a", learning_rate=1))
        self.assertIn("--temperature must be a number of at least 0", refused(prompt="a", temperature=-1))
        self.assertIn("--top_p must be a number above 0 and at most 1", refused(prompt="a", top_p=2, temperature=1))
        self.assertIn("give a --temperature above 0", refused(prompt="a", top_k=5))
        self.assertIn("--max_new_tokens must be a whole number", refused(prompt="a", max_new_tokens="many"))
        self.assertIn("goes beyond the 512 positions", refused(prompt="a", max_new_tokens=512))
        self.assertIn("--input has no place in a prompt that is --raw", refused(prompt="a", input="b", raw=True))
        blank = self.folder / "blank.txt"
        blank.write_text("\n  \n")
        self.assertIn("has no line with a prompt", refused(prompt_file=blank))
        self.assertIn("unknown option '--promt'", refused(promt="a"))
        mpirun = ["mpirun", "--oversubscribe", "-np", "2"]
        self.assertIn("is one process, and 2 were started",
                      "\n".join(self.generate(expect=2, launcher=mpirun, prompt="a").sentences()))

    @unittest.skipUnless(REAL_MODEL.is_dir(), "no pretrained model")
    def test_a_pretrained_model(self):
        for prompt in ("The capital of France is", "<|im_start|>user\nName three rivers.<|im_end|>\n<|im_start|>assistant\n"):
            self.assert_as_transformers(prompt, tokens=64, model=REAL_MODEL)


if __name__ == "__main__":
    unittest.main()
