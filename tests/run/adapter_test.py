"""What a run leaves behind works elsewhere: PEFT loads the adapter, Transformers the merged model."""

import unittest

import numpy as np
import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer

import harness

PROMPT = torch.tensor([[5, 9, 200, 31, 7, 300, 42, 77, 18, 260, 3, 99]])


def logits(model):
    with torch.no_grad():
        return model(PROMPT).logits


def names_in(folder):
    return {name for file in folder.glob("*.safetensors") for name in safe_open(file, "pt").keys()}


class Adapters(harness.RunTest):
    rows = 12
    flags = {"max_steps": 12, "learning_rate": "2e-2", "warmup_steps": 2}

    def base(self, folder=None):
        return AutoModelForCausalLM.from_pretrained(folder or self.model, dtype=torch.float32).eval()

    def with_adapter(self, folder, base=None):
        return PeftModel.from_pretrained(self.base(base), folder).eval()

    def test_a_fresh_adapter_is_an_identity(self):
        output = self.new_output()
        self.train(2, output, max_steps=1, learning_rate=0)
        tensors = harness.adapter(output / "adapter")
        self.assertEqual(len(tensors), 2 * 7 * self.config["num_hidden_layers"])
        for name, values in tensors.items():
            self.assertEqual(values.dtype, np.float32)
            if "lora_B" in name:
                self.assertFalse(values.any(), name)
            else:  # uniform in (-1/sqrt(in), 1/sqrt(in)), which is PEFT's Kaiming initialisation
                bound = 1 / np.sqrt(values.shape[1])
                self.assertLess(np.abs(values).max(), bound)
                self.assertGreater(np.abs(values).max(), 0.9 * bound)
                self.assertLess(abs(values.std() / (bound / np.sqrt(3)) - 1), 0.15)
        self.assertTrue(torch.equal(logits(self.with_adapter(output / "adapter")), logits(self.base())))

        again, other = self.new_output(), self.new_output()
        self.train(1, again, max_steps=1, learning_rate=0)
        self.train(1, other, max_steps=1, learning_rate=0, random_state=4)
        self.assert_same_bits(tensors, harness.adapter(again / "adapter"))
        self.assertNotEqual(harness.adapter(other / "adapter")["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"]
                            .tobytes(), tensors["base_model.model.model.layers.0.mlp.up_proj.lora_A.weight"].tobytes())

    def assert_merged_equals_adapter(self, output, merged, base=None):
        expected, found = logits(self.with_adapter(output / "adapter", base)), logits(self.base(merged))
        untrained = logits(self.base(base))
        moved = (expected - untrained).abs().max().item()
        self.assertGreater(moved, 0.3, "training has to move the logits")
        self.assertLess((found - expected).abs().max().item(), 0.1 * moved)
        # Each weight is the merge in fp32, rounded once.
        adapter = self.with_adapter(output / "adapter", base)
        reference = adapter.merge_and_unload().state_dict()
        for name, values in self.base(merged).state_dict().items():
            difference = (values - reference[name].bfloat16().float()).abs().max().item()
            self.assertLessEqual(difference, 2 ** -8 * reference[name].abs().max().item(), name)

    def test_merged_model(self):
        output, merged = self.new_output(), self.folder / "merged"
        # A relative path is taken from where the program is started.
        self.train(2, output, **self.flags, save_model=True, save_path="merged")
        self.assert_merged_equals_adapter(output, merged)

        self.assertIn("lm_head.weight", names_in(merged))
        self.assertEqual(AutoModelForCausalLM.from_pretrained(merged).dtype, torch.bfloat16)
        text = "### Instruction:\n    the cat sat"
        self.assertEqual(AutoTokenizer.from_pretrained(merged)(text).input_ids,
                         AutoTokenizer.from_pretrained(self.model)(text).input_ids)

        before = harness.tree(merged)
        refused = self.train(2, self.new_output(), expect=2, **self.flags, save_model=True, save_path="merged")
        self.assertEqual(len(refused.sentences()), 1, refused)
        self.assertIn("--save_path merged exists already", refused.sentences()[0])
        self.assertEqual(harness.tree(merged), before)

    def test_rslora_and_alpha_on_a_tied_qwen3(self):
        config = harness.qwen3_config(tie_word_embeddings=True)
        base = harness.make_model(self.folder / "qwen3", config, seed=3)
        output, merged = self.new_output(), self.folder / "merged-qwen3"
        self.train(2, output, **{**self.flags, "learning_rate": "5e-3"}, model_name=base, use_rslora=True, save_model=True,
                   save_method="merged_16bit", save_path=merged)
        self.assert_merged_equals_adapter(output, merged, base)
        self.assertIn("model.embed_tokens.weight", names_in(merged))
        self.assertNotIn("lm_head.weight", names_in(merged))

    def test_biases_of_a_qwen2(self):
        base = harness.make_model(self.folder / "qwen2", harness.qwen2_config(), seed=4)
        output, merged = self.new_output(), self.folder / "merged-qwen2"
        self.train(2, output, **self.flags, model_name=base, save_model=True, save_path=merged)
        self.assert_merged_equals_adapter(output, merged, base)
        self.assertEqual(names_in(merged), names_in(base))
        self.assertIn("model.layers.1.self_attn.k_proj.bias", names_in(merged))

    def test_save_method_lora(self):
        output, saved = self.new_output(), self.folder / "saved-lora"
        self.train(2, output, **self.flags, save_model=True, save_method="lora", save_path=saved,
                   target_modules="q_proj,v_proj")
        tensors = harness.adapter(saved)
        self.assert_same_bits(harness.adapter(output / "adapter"), tensors)
        self.assertEqual({name.split(".")[-3] for name in tensors}, {"q_proj", "v_proj"})
        self.assertGreater((logits(self.with_adapter(saved)) - logits(self.base())).abs().max().item(), 0.05)
        self.assertFalse(list(saved.glob("model*.safetensors")))

    def test_training_goes_on_from_an_adapter(self):
        output, more = self.new_output(), self.new_output()
        self.train(2, output, **self.flags)
        self.train(2, more, max_steps=1, learning_rate=0, init_adapter=output / "adapter", r=None, lora_alpha=None)
        self.assert_same_bits(harness.adapter(output / "adapter"), harness.adapter(more / "adapter"))
        refused = self.train(2, self.new_output(), expect=2, max_steps=1, init_adapter=output / "adapter", r=4,
                             lora_alpha=16)
        self.assertEqual(len(refused.sentences()), 1, refused)
        self.assertIn("--r 4 contradicts", refused.sentences()[0])


if __name__ == "__main__":
    unittest.main()
