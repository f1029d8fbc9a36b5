"""ranktune export: Transformers loads the merged model and computes what the base with the adapter computes."""

import json
import shutil
import subprocess
import unittest

import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import harness

PROMPT = torch.tensor([[5, 9, 200, 31, 7, 300, 42, 77, 18, 260, 3, 99]])


def logits(model):
    with torch.no_grad():
        return model.eval()(PROMPT).logits


class Export(harness.RunTest):
    def export(self, *words, expect=0):
        """Without mpirun, and where MPI_Init would fail."""
        environment = self.environment(OMPI_MCA_pml="none", OMPI_MCA_btl="none")
        done = subprocess.run([harness.BINARY, "export", *map(str, words)], env=environment, cwd=self.folder,
                              capture_output=True, text=True, timeout=120)
        finished = harness.Finished(done.returncode, done.stdout, done.stderr, 0)
        self.assertEqual(finished.code, expect, finished)
        return finished

    def base(self, folder, dtype):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    def base_of_type(self, name, config, dtype):
        folder = harness.make_model(self.folder / name, config, seed=7)
        tensors = load_file(folder / "model.safetensors")
        save_file({key: value.to(dtype) for key, value in tensors.items()}, folder / "model.safetensors",
                  metadata={"format": "pt"})
        return folder

    def assert_is_the_merge(self, merged, base, adapter, dtype):
        """Each weight is W + s B A in fp32, rounded once, and what is not adapted has the base's bits."""
        reference = PeftModel.from_pretrained(self.base(base, torch.float32), adapter).merge_and_unload()
        found = self.base(merged, "auto")
        self.assertEqual(found.dtype, dtype)
        untouched = self.base(base, torch.float32).state_dict()
        for name, values in reference.state_dict().items():
            got = found.state_dict()[name]
            if torch.equal(values, untouched[name]):
                self.assertTrue(torch.equal(got, values.to(dtype)), name)
            else:  # fp32 sums in another order may round to the neighbour, rarely
                self.assertLess((got != values.to(dtype)).float().mean().item(), 1e-2, name)
                ulp = 2 ** -7 if dtype == torch.bfloat16 else 2 ** -10
                self.assertTrue(torch.allclose(got.float(), values, rtol=ulp, atol=1e-7), name)
        expected = logits(reference)
        moved = (expected - logits(self.base(base, torch.float32))).abs().max().item()
        self.assertGreater(moved, 0.3)
        self.assertLess((logits(self.base(merged, torch.float32)) - expected).abs().max().item(), 0.1 * moved)

    def test_a_tied_bfloat16_model_in_shards(self):
        config = harness.qwen3_config(tie_word_embeddings=True)
        base = self.base_of_type("tied", config, torch.bfloat16)
        (base / "generation_config.json").write_text('{"eos_token_id": 0}')
        (base / "chat_template.jinja").write_text("{{ messages }}")
        (base / "LICENSE").write_text("as you like")
        (base / "secret.txt").write_text("not a part of the model")
        adapter = harness.make_adapter(self.folder / "tied-adapter", config, rslora=True, size_of_b=0.2)
        one, many = self.folder / "one", self.folder / "many"
        self.export(adapter, "--to", "merged_16bit", "--save_path", one, "--model_name", base)
        self.assert_is_the_merge(one, base, adapter, torch.bfloat16)
        self.assertEqual({path.name for path in one.iterdir()},
                         {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json",
                          "tokenizer_config.json", "chat_template.jinja", "LICENSE"})
        self.assertNotIn("lm_head.weight", load_file(one / "model.safetensors"))
        self.assertEqual(AutoTokenizer.from_pretrained(one)("the cat").input_ids,
                         AutoTokenizer.from_pretrained(base)("the cat").input_ids)

        self.export("--to=merged_16bit", "--save_path", many, adapter, "--model_name", base, "--max_shard_size", "50KB")
        shards = sorted(many.glob("model-*.safetensors"))
        self.assertGreater(len(shards), 2)
        self.assertFalse((many / "model.safetensors").exists())
        for shard in shards:
            self.assertLessEqual(sum(t.nbytes for t in load_file(shard).values()), 50_000)
        index = json.loads((many / "model.safetensors.index.json").read_text())
        self.assertEqual(set(index["weight_map"]), set(load_file(one / "model.safetensors")))
        whole, sharded = self.base(one, "auto").state_dict(), self.base(many, "auto").state_dict()
        for name, values in whole.items():
            self.assertTrue(torch.equal(values, sharded[name]), name)

    def test_types_of_the_files(self):
        config = harness.llama_config()
        adapter = harness.make_adapter(self.folder / "typed-adapter", config, size_of_b=0.2)
        half = self.base_of_type("half", config, torch.float16)
        single = self.base_of_type("single", config, torch.float32)
        for base, dtype in ((half, torch.float16), (single, torch.bfloat16)):
            merged = self.folder / f"merged-{base.name}"
            self.export(adapter, "--to", "merged_16bit", "--save_path", merged, "--model_name", base)
            self.assert_is_the_merge(merged, base, adapter, dtype)

    def test_of_a_run_and_of_its_checkpoint(self):
        output = self.new_output()
        self.train(1, output, max_steps=4, save_steps=2, save_model=True, save_path=self.folder / "at-the-end")
        # The base is the one that the adapter names.
        self.export(output, "--to", "merged_16bit", "--save_path", "later")
        self.assertEqual(harness.tree(self.folder / "later"), harness.tree(self.folder / "at-the-end"))

        self.export(output / "checkpoint-000002", "--to", "lora", "--save_path", self.folder / "from-checkpoint",
                    "--model_name", "elsewhere/base")
        self.assert_same_bits(harness.adapter(self.folder / "from-checkpoint"),
                              harness.adapter(output / "checkpoint-000002" / "adapter"))
        config = json.loads((self.folder / "from-checkpoint" / "adapter_config.json").read_text())
        self.assertEqual(config["base_model_name_or_path"], "elsewhere/base")

        shutil.rmtree(output / "adapter")
        refused = self.export(output, "--to", "lora", "--save_path", "never", expect=2)
        self.assertIn("checkpoint-000004", refused.sentences()[0])

    def test_what_is_refused(self):
        adapter = harness.make_adapter(self.folder / "some-adapter", self.config)
        there = self.folder / "there"
        there.mkdir()
        deeper = harness.make_model(self.folder / "deeper", harness.llama_config(num_hidden_layers=3))
        wider = harness.make_model(self.folder / "wider", harness.llama_config(hidden_size=56))

        def refused(*words):
            sentences = self.export(*words, expect=2).sentences()
            self.assertFalse((self.folder / "out").exists())
            return "\n".join(sentences)

        merge = ["--to", "merged_16bit", "--save_path", "out"]
        self.assertIn("--save_path there exists already", refused(adapter, "--to", "lora", "--save_path", "there"))
        self.assertIn("the base model that the adapter names is not found", refused(adapter, *merge))
        self.assertIn("name its base model with --model_name", refused(adapter, *merge, "--model_name", deeper))
        self.assertIn("does not have the shape", refused(adapter, *merge, "--model_name", wider))
        self.assertIn("holds no adapter_config.json", refused(self.model, *merge))
        self.assertIn("'nowhere'", refused("./nowhere".replace("./", ""), *merge))
        for form in ("merged_4bit", "fp8"):
            self.assertIn(f"not '{form}'", refused(adapter, "--to", form, "--save_path", "out"))
        self.assertIn("takes one run or adapter, and 0 were named", refused(*merge))
        self.assertIn("--save_path has to name", refused(adapter, "--to", "lora"))
        self.assertIn("not '5 apples'", refused(adapter, *merge, "--max_shard_size", "5 apples"))
        self.assertIn("--sav_path", refused(adapter, *merge, "--sav_path", "x"))
        dummy = self.train(1, self.new_output(), expect=2, load_format="dummy", save_model=True, save_path="out")
        self.assertIn("nothing to merge with --load_format dummy", dummy.sentences()[0])


if __name__ == "__main__":
    unittest.main()
