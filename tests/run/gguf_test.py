"""GGUF files: the gguf package reads every key and tensor, Transformers loads the model and computes what the base
with the adapter computes."""

import json
import shutil
import subprocess
import unittest

import gguf
import numpy as np
import torch
from peft import PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

import harness

PROMPT = torch.tensor([[5, 9, 200, 31, 7, 300, 42, 77, 18, 260, 3, 99]])
TYPES = {"f32": gguf.GGMLQuantizationType.F32, "f16": gguf.GGMLQuantizationType.F16,
         "bf16": gguf.GGMLQuantizationType.BF16, "q8_0": gguf.GGMLQuantizationType.Q8_0}
FILE_TYPES = {"f32": gguf.LlamaFileType.ALL_F32, "f16": gguf.LlamaFileType.MOSTLY_F16,
              "bf16": gguf.LlamaFileType.MOSTLY_BF16, "q8_0": gguf.LlamaFileType.MOSTLY_Q8_0}
TOKENIZERS = harness.TEST_DATA / "tokenizers"


def logits(model):
    with torch.no_grad():
        return model.eval()(PROMPT).logits


def keys_of(reader):
    return {name: field.contents() for name, field in reader.fields.items()}


def permuted(matrix, heads):
    """As llama.cpp's convert_hf_to_gguf.py has it."""
    return matrix.reshape(heads, 2, matrix.shape[0] // heads // 2, *matrix.shape[1:]).swapaxes(1, 2).reshape(matrix.shape)


class Gguf(harness.RunTest):
    def export(self, *words, expect=0):
        done = subprocess.run([harness.BINARY, "export", *map(str, words)], env=self.environment(), cwd=self.folder,
                              capture_output=True, text=True, timeout=120)
        finished = harness.Finished(done.returncode, done.stdout, done.stderr, 0)
        self.assertEqual(finished.code, expect, finished)
        return finished

    def merged_weights(self, base, adapter):
        model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        model = PeftModel.from_pretrained(model, adapter).merge_and_unload().eval()
        return model, {name: value.numpy() for name, value in model.state_dict().items()}

    def assert_holds(self, path, kind, config, weights):
        """All tensors, under llama.cpp's names, quantised as the gguf package quantises them."""
        reader = gguf.GGUFReader(path)
        arch = gguf.MODEL_ARCH.LLAMA if config["model_type"] in ("llama", "mistral") else \
            {"qwen2": gguf.MODEL_ARCH.QWEN2, "qwen3": gguf.MODEL_ARCH.QWEN3}[config["model_type"]]
        names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
        found = {tensor.name: tensor for tensor in reader.tensors}
        expected = {}
        for name, value in weights.items():
            if name == "lm_head.weight" and config["tie_word_embeddings"]:
                continue
            if arch == gguf.MODEL_ARCH.LLAMA and ".q_proj." in name:
                value = permuted(value, config["num_attention_heads"])
            if arch == gguf.MODEL_ARCH.LLAMA and ".k_proj." in name:
                value = permuted(value, config["num_key_value_heads"])
            expected[names.get_name(name, try_suffixes=(".weight", ".bias"))] = value
        self.assertEqual(set(found) - {"rope_freqs.weight"}, set(expected))
        for name, value in expected.items():
            tensor = found[name]
            self.assertEqual(list(reversed(tensor.shape.tolist())), list(value.shape), name)
            wanted = TYPES[kind] if value.ndim == 2 else gguf.GGMLQuantizationType.F32
            if wanted == gguf.GGMLQuantizationType.Q8_0 and value.shape[1] % 32:
                wanted = gguf.GGMLQuantizationType.F16
            self.assertEqual(tensor.tensor_type, wanted, name)
            self.assertEqual(tensor.data_offset % 32, 0)
            reference = gguf.quantize(value, wanted)
            # fp32 sums in another order may round to the neighbour, rarely; what is not adapted has its own bits.
            bits = tensor.data.tobytes(), reference.tobytes()
            if value.ndim == 1 or "embd" in name or name == "output.weight":
                self.assertEqual(*bits, name)
            elif wanted != gguf.GGMLQuantizationType.F32:
                differ = np.frombuffer(bits[0], np.uint8) != np.frombuffer(bits[1], np.uint8)
                self.assertLess(differ.mean(), 1e-2, name)
            values = gguf.dequantize(tensor.data, wanted).reshape(value.shape)
            again = gguf.dequantize(reference, wanted).reshape(value.shape)
            self.assertLess(np.abs(values - again).max(), np.abs(value).max() / 100, name)
        return reader

    def assert_model_keys(self, reader, kind, config):
        keys = keys_of(reader)
        arch = "llama" if config["model_type"] == "mistral" else config["model_type"]
        expected = {"general.architecture": arch, "general.type": "model", "general.quantization_version": 2,
                    "general.file_type": FILE_TYPES[kind].value,
                    f"{arch}.vocab_size": config["vocab_size"], f"{arch}.embedding_length": config["hidden_size"],
                    f"{arch}.context_length": config["max_position_embeddings"],
                    f"{arch}.block_count": config["num_hidden_layers"],
                    f"{arch}.feed_forward_length": config["intermediate_size"],
                    f"{arch}.attention.head_count": config["num_attention_heads"],
                    f"{arch}.attention.head_count_kv": config["num_key_value_heads"],
                    f"{arch}.attention.key_length": config["head_dim"],
                    f"{arch}.attention.value_length": config["head_dim"],
                    f"{arch}.rope.dimension_count": config["head_dim"],
                    f"{arch}.attention.layer_norm_rms_epsilon": np.float32(config["rms_norm_eps"]),
                    f"{arch}.rope.freq_base": np.float32(config["rope_theta"])}
        for name, value in expected.items():
            self.assertEqual(keys[name], value, name)
        return keys

    def assert_tokenizer(self, keys, folder, pre):
        tokenizer = json.loads((folder / "tokenizer.json").read_text())
        self.assertEqual((keys["tokenizer.ggml.model"], keys["tokenizer.ggml.pre"]), ("gpt2", pre))
        size = len(keys["tokenizer.ggml.tokens"])
        self.assertEqual(size, len(keys["tokenizer.ggml.token_type"]))
        expected = {index: (text, gguf.TokenType.NORMAL) for text, index in tokenizer["model"]["vocab"].items()}
        for added in tokenizer["added_tokens"]:
            kind = gguf.TokenType.CONTROL if added["special"] else gguf.TokenType.USER_DEFINED
            expected[added["id"]] = (added["content"], kind)
        wanted = [expected.get(index, (f"[PAD{index}]", gguf.TokenType.UNUSED)) for index in range(size)]
        self.assertTrue(keys["tokenizer.ggml.tokens"] == [text for text, _ in wanted])
        self.assertTrue(keys["tokenizer.ggml.token_type"] == [kind for _, kind in wanted])
        merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in tokenizer["model"]["merges"]]
        self.assertTrue(keys["tokenizer.ggml.merges"] == merges)

    def exported(self, name, config, types, seed=0):
        base = harness.make_model(self.folder / name, config, seed=seed)
        adapter = harness.make_adapter(self.folder / f"{name}-adapter", config, size_of_b=0.2)
        out = self.folder / f"{name}-gguf"
        self.export(adapter, "--to", "gguf", "--quantization", *types, "--save_path", out, "--model_name", base)
        self.assertEqual({path.name for path in out.iterdir()}, {f"model-{kind}.gguf" for kind in types})
        return base, adapter, out

    def test_every_architecture_and_type(self):
        wide = {"hidden_size": 64, "head_dim": 16, "intermediate_size": 96}
        # Transformers takes a llama for another model where its name says mistral.
        kinds = {"llama": harness.llama_config(**wide), "renamed": harness.llama_config(
                     architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=None, **wide),
                 "qwen2": {**harness.qwen2_config(), **wide, "head_dim": 16},
                 "qwen3": harness.qwen3_config(tie_word_embeddings=True, **wide)}
        for seed, (name, config) in enumerate(kinds.items()):
            types = list(TYPES) if name in ("llama", "qwen3") else ["f32"]
            base, adapter, out = self.exported(name, config, types, seed)
            model, weights = self.merged_weights(base, adapter)
            for kind in types:
                with self.subTest(name, kind=kind):
                    reader = self.assert_holds(out / f"model-{kind}.gguf", kind, config, weights)
                    keys = self.assert_model_keys(reader, kind, config)
                    self.assert_tokenizer(keys, base, "gpt-2")
                    self.assertEqual(keys["tokenizer.ggml.eos_token_id"], 0)
                    self.assertEqual(keys["tokenizer.ggml.padding_token_id"], 1)
                    self.assertEqual(keys["tokenizer.ggml.add_bos_token"], False)
                    self.assertNotIn("tokenizer.ggml.bos_token_id", keys)
            with self.subTest(name, loaded=True):
                # Another reader of the format, which undoes the order of rows by itself.
                described = AutoConfig.from_pretrained(base) if name == "qwen3" else None  # it reads no head_dim there
                loaded = AutoModelForCausalLM.from_pretrained(out, gguf_file="model-f32.gguf", dtype=torch.float32,
                                                              config=described)
                self.assertEqual(loaded.config.model_type, config["model_type"].replace("mistral", "llama"))
                self.assertLess((logits(loaded) - logits(model)).abs().max().item(), 1e-3)

    def test_stretched_rope(self):
        scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                   "original_max_position_embeddings": 64}
        _, _, out = self.exported("llama3", harness.llama_config(rope_scaling=scaling, rope_theta=500000.0), ["f16"])
        reader = gguf.GGUFReader(out / "model-f16.gguf")
        found = {tensor.name: tensor for tensor in reader.tensors}["rope_freqs.weight"].data
        # convert_hf_to_gguf.py, LlamaModel.generate_extra_tensors
        frequencies = 1.0 / (500000.0 ** (np.arange(0, 12, 2) / 12))
        expected = []
        for wavelength in 2 * np.pi / frequencies:
            smooth = (64 / wavelength - 1.0) / (4.0 - 1.0)
            expected.append(1 if wavelength < 64 / 4 else 8 if wavelength > 64 else 1 / ((1 - smooth) / 8 + smooth))
        np.testing.assert_allclose(found, expected, rtol=1e-5)
        self.assertGreater(len(set(np.round(found, 3))), 2)

        _, _, out = self.exported("linear", harness.llama_config(rope_scaling={"rope_type": "linear", "factor": 4.0}),
                                  ["q8_0"])
        keys = keys_of(gguf.GGUFReader(out / "model-q8_0.gguf"))
        self.assertEqual((keys["llama.rope.scaling.type"], keys["llama.rope.scaling.factor"]), ("linear", 4.0))

    def test_at_the_end_of_a_run(self):
        output, saved = self.new_output(), self.folder / "saved"
        self.train(2, output, max_steps=2, save_model=True, save_gguf=True, quantization="q8_0,f16", save_path=saved)
        self.assertEqual({path.name for path in saved.iterdir()},
                         {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json",
                          "model-q8_0.gguf", "model-f16.gguf"})
        self.export(output, "--to", "gguf", "--quantization", "f16", "--save_path", "later")
        self.assertEqual((self.folder / "later" / "model-f16.gguf").read_bytes(),
                         (saved / "model-f16.gguf").read_bytes())
        alone = self.folder / "alone"
        self.train(1, self.new_output(), max_steps=1, save_gguf=True, save_path=alone)
        self.assertEqual([path.name for path in alone.iterdir()], ["model-q8_0.gguf"])

    @unittest.skipUnless(TOKENIZERS.is_dir(), "no trial tokenizers")
    def test_real_tokenizers(self):
        for name, pre in {"llama3.1": "llama-bpe", "qwen3": "qwen2", "smollm": "smollm"}.items():
            with self.subTest(name):
                real = AutoTokenizer.from_pretrained(TOKENIZERS / name)
                config = harness.llama_config(vocab_size=len(real) + 3, num_hidden_layers=1)
                base = harness.make_model(self.folder / f"base-{name}", config)
                for file in TOKENIZERS.joinpath(name).glob("*.json"):
                    shutil.copy(file, base)
                adapter = harness.make_adapter(self.folder / f"adapter-{name}", config)
                out = self.folder / f"out-{name}"
                self.export(adapter, "--to", "gguf", "--save_path", out, "--model_name", base)
                keys = keys_of(gguf.GGUFReader(out / "model-q8_0.gguf"))
                self.assert_tokenizer(keys, base, pre)
                self.assertEqual(keys["tokenizer.ggml.eos_token_id"], real.eos_token_id)
                self.assertEqual(keys.get("tokenizer.ggml.bos_token_id"), real.bos_token_id)
                self.assertEqual(keys["tokenizer.ggml.add_bos_token"], name == "llama3.1")
                self.assertEqual(keys.get("tokenizer.chat_template"), real.chat_template)

    def test_what_is_refused(self):
        def refused(name, config, words=("--to", "gguf")):
            base = harness.make_model(self.folder / name, config)
            adapter = harness.make_adapter(self.folder / f"{name}-adapter", config)
            done = self.export(adapter, *words, "--save_path", "out", "--model_name", base, expect=2)
            self.assertFalse((self.folder / "out").exists())
            return "\n".join(done.sentences())

        self.assertIn("a sliding window cannot", refused("window", harness.llama_config(
            architectures=["MistralForCausalLM"], model_type="mistral", sliding_window=16)))
        self.assertIn("dynamic or yarn RoPE cannot", refused("dynamic", harness.llama_config(
            rope_scaling={"rope_type": "dynamic", "factor": 2.0})))
        plain = harness.llama_config()
        self.assertIn("--quantization q4_k_m is not available", refused(
            "q4", plain, ("--to", "gguf", "--quantization", "q4_k_m")))
        self.assertIn("give --to gguf", refused("other", plain, ("--to", "lora", "--quantization", "f16")))
        odd = harness.make_model(self.folder / "odd", plain)
        tokenizer = json.loads((odd / "tokenizer.json").read_text())
        tokenizer["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": "\\p{L}+"}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}]}
        harness.write_json(odd / "tokenizer.json", tokenizer)
        done = self.train(1, self.new_output(), expect=2, model_name=odd, max_steps=1, save_gguf=True, save_path="out")
        self.assertEqual(len(done.sentences()), 1, done)
        self.assertIn("is not byte-level BPE with a pre-tokenizer of", done.sentences()[0])


if __name__ == "__main__":
    unittest.main()
