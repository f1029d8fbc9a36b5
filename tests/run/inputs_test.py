"""Wrong inputs: one clear sentence that names what is wrong, said once, exit code 2, within seconds, nothing changed."""

import json
import shutil
import unittest

import harness

LIMIT = 20  # seconds, on a machine that has other things to do; a second or two is usual


class Inputs(harness.RunTest):
    rows = 8

    def folder_like(self, name):
        folder = self.folder / name
        shutil.copytree(self.model, folder)
        return folder

    def refused(self, *parts, sentences=1, **flags):
        """The run ends with code 2 and says each of the parts, in as many sentences as stated and not once a rank."""
        output = flags.pop("output", None) or self.new_output()
        done = self.start(2, output, **{"max_steps": 2, **flags}).finish(limit=60)
        self.assertEqual(done.code, 2, done)
        self.assertLess(done.seconds, LIMIT, done)
        self.assertEqual(len(done.sentences()), sentences, done)
        for part in parts:
            self.assertIn(str(part), "\n".join(done.sentences()))
        for sentence in done.sentences():
            self.assertNotIn("rank 1", sentence)
            self.assertNotIn("std::", sentence)
            self.assertNotIn("[json.exception", sentence)
        self.assertNotIn("step 1/2", done.output)
        self.assertFalse((output / "metrics.h5").exists() or (output / "adapter").exists())
        return done

    # ---- the model ----

    def test_no_such_model(self):
        missing = self.folder / "no-such-model"
        self.refused(missing, model_name=missing)
        self.refused("there is no such folder or file", "./nowhere", model_name="./nowhere")

    def test_a_file_of_the_model_is_missing(self):
        for name in ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]:
            with self.subTest(name):
                folder = self.folder_like(f"without-{name}")
                (folder / name).unlink()
                self.refused(name, folder, model_name=folder)

    def test_truncated_weights(self):
        folder = self.folder_like("truncated")
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1000])
        self.refused(weights, "not a usable safetensors file", model_name=folder)
        weights.write_bytes(b"\x08\x00")
        self.refused(weights, "2 bytes", model_name=folder)

    def test_absurd_header_length(self):
        folder = self.folder_like("header")
        weights = folder / "model.safetensors"
        weights.write_bytes((2 ** 63).to_bytes(8, "little") + weights.read_bytes()[8:])
        self.refused(weights, "9223372036854775808", model_name=folder)

    def test_a_missing_and_a_misshapen_tensor(self):
        folder = self.folder_like("tensors")
        tensors = harness.random_weights(self.config)
        name = "model.layers.1.mlp.up_proj.weight"
        harness.save_file({key: value for key, value in tensors.items() if key != name}, folder / "model.safetensors")
        self.refused(name, model_name=folder)
        tensors[name] = tensors[name][:, :-1].copy()
        harness.save_file(tensors, folder / "model.safetensors")
        self.refused(name, model_name=folder)

    def test_tensors_that_the_config_does_not_know(self):
        folder = self.folder_like("biases")
        tensors = harness.random_weights(self.config)
        name = "model.layers.0.self_attn.q_proj.bias"
        tensors[name] = tensors["model.norm.weight"]
        harness.save_file(tensors, folder / "model.safetensors")
        self.refused(name, "config.json", model_name=folder)
        del tensors[name]
        harness.save_file(tensors, folder / "model.safetensors")
        harness.write_json(folder / "config.json", harness.llama_config(tie_word_embeddings=True))
        self.refused("lm_head.weight", "tie_word_embeddings", model_name=folder)

    def test_unknown_architecture(self):
        folder = self.folder_like("mamba")
        harness.write_json(folder / "config.json",
                           harness.llama_config(architectures=["MambaForCausalLM"], model_type="mamba"))
        self.refused(folder, "MambaForCausalLM", model_name=folder)

    def test_broken_config(self):
        folder = self.folder_like("config")
        (folder / "config.json").write_text('{"architectures": ["LlamaForCausalLM"], ')
        self.refused(folder / "config.json", "JSON", model_name=folder)
        harness.write_json(folder / "config.json", harness.llama_config(num_key_value_heads=3))
        self.refused("num_key_value_heads", "3", model_name=folder)
        harness.write_json(folder / "config.json", harness.llama_config(hidden_size="wide"))
        self.refused("hidden_size", "wide", model_name=folder)
        harness.write_json(folder / "config.json", harness.llama_config(rope_scaling={"rope_type": "longrope"}))
        self.refused("rope_scaling", "longrope", model_name=folder)

    def test_tokenizer_of_another_model(self):
        folder = self.folder_like("tokenizer")
        harness.make_tokenizer(folder, extra_tokens=["<|extra|>"])
        self.refused("384", "vocab_size", model_name=folder)
        (folder / "tokenizer.json").write_text("[")
        self.refused("tokenizer.json", model_name=folder)

    # ---- the dataset ----

    def data_of(self, text, name="data.json"):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_malformed_rows(self):
        good = json.dumps(harness.make_rows(1)[0])
        path = self.data_of(f'[{good},\n{good},\n{{"instruction": "a", "input": "", "output": 5}}]')
        self.refused(path, "line 3", "output", dataset=path)
        path = self.data_of(f'[{good},\n{{"instruction": "a", "output: }}]')
        self.refused(path, "line 2", dataset=path)
        path = self.data_of(f'[{good},\n{good},\n\n{{"question": "a", "answer": "b"}}]')
        self.refused(path, "line 4", "instruction", "question", dataset=path)

    def test_cut_short(self):
        good = json.dumps(harness.make_rows(1)[0])
        path = self.data_of(f"{good}\n{good}\n{good[:25]}", "cut.jsonl")
        self.refused(path, "line 3", dataset=path)
        path = self.data_of(f"[{good},\n{good},")
        self.refused(path, dataset=path)

    def test_nothing_in_it(self):
        self.refused("empty.json", dataset=self.data_of("[]", "empty.json"))
        self.refused("nothing.json", dataset=self.data_of("", "nothing.json"))
        self.refused("nothing.jsonl", dataset=self.data_of("\n\n", "nothing.jsonl"))
        self.refused("no-such.json", dataset=self.folder / "no-such.json")

    def test_not_text(self):
        path = self.folder / "latin1.json"
        path.write_bytes('[{"instruction": "caf\u00e9", "input": "", "output": "b"}]'.encode("latin-1"))
        self.refused(path, "line 1", "UTF-8", dataset=path)

    def test_no_room_for_a_target(self):
        self.refused("--max_seq_length", "'1'", max_seq_length=1)

    def test_hub_names_that_are_not_in_the_cache(self):
        self.refused("hf download no/such-data --repo-type dataset", dataset="no/such-data")
        self.refused("hf download someone/a-model", model_name="someone/a-model")

    # ---- the command line ----

    def test_numbers(self):
        wrong = {"learning_rate": ["-1", "inf", "nan", "fast", "1e-4x"], "max_steps": ["ten", "2.5", "0", "-3"],
                 "gradient_accumulation_steps": ["0", "4294967297", "1e3"], "per_device_train_batch_size": ["-2", ""],
                 "r": ["0", "100000"], "lora_alpha": ["0", "x"], "lora_dropout": ["1", "-0.1"], "weight_decay": ["-0.5"],
                 "max_grad_norm": ["-1"], "warmup_steps": ["-1"], "max_seq_length": ["0", "1000000000000"],
                 "seed": ["-1", "99999999999999999999"], "save_steps": ["-1"], "max_time": ["soon"],
                 "max_tokens_per_pass": ["-5"], "logging_steps": ["0"], "save_total_limit": ["some"]}
        for turn in range(5):
            flags = {flag: values[turn] for flag, values in wrong.items() if turn < len(values)}
            with self.subTest(**flags):
                done = self.refused(sentences=len(flags), **flags)
                for flag, value in flags.items():
                    about = [sentence for sentence in done.sentences() if f"--{flag} " in sentence]
                    self.assertEqual(len(about), 1, done)
                    self.assertIn(f"'{value}'", about[0])

    def test_mistyped_flags(self):
        self.refused("--lerning_rate", "did you mean '--learning_rate'?", lerning_rate="1e-4")
        self.refused("--max_step'", "did you mean '--max_steps'?", max_step=3)

    def test_what_this_version_cannot_do(self):
        """Refused, never ignored: each flag has a sentence of its own."""
        switches = ["load_in_8bit", "full_finetuning", "use_dora", "push_model"]
        values = {"optim": "lion_8bit", "report_to": "tensorboard", "bias": "all", "lr_scheduler_type": "polynomial",
                  "dtype": "float16", "save_method": "merged_4bit", "target_modules": "embed_tokens",
                  "loftq_config": "{}", "quantization": "q4_k_m", "hub_path": "me/mine"}
        flags = {**dict.fromkeys(switches, True), **values}
        done = self.refused(sentences=len(flags), save_gguf=True, **flags)
        for flag in flags:
            about = [sentence for sentence in done.sentences() if sentence.startswith(f"--{flag} ")]
            self.assertEqual(len(about), 1, (flag, str(done)))
        for flag in ["optim", "report_to", "bias", "lr_scheduler_type", "dtype", "save_method", "target_modules",
                     "quantization"]:
            self.assertTrue(any(values[flag] in sentence for sentence in done.sentences()), flag)
        self.refused("--load_in_8bit", load_in_8bit=True)

    def test_bfloat16_on_the_cpu(self):
        self.refused("--dtype bfloat16", dtype="bfloat16")

    def test_folders_that_cannot_be_written(self):
        done = self.start(2, "/proc/x", max_steps=2).finish()
        self.assertEqual((done.code, len(done.sentences())), (2, 1), done)
        self.assertIn("--output_dir /proc/x", done.sentences()[0])
        file = self.data_of("not a folder", "occupied")
        done = self.start(2, file, max_steps=2).finish()
        self.assertEqual((done.code, len(done.sentences())), (2, 1), done)
        self.assertIn(str(file), done.sentences()[0])
        self.refused("save_path", "/proc/y", save_model=True, save_path="/proc/y/model")

    def test_all_problems_at_once(self):
        folder = self.folder_like("several")
        weights = folder / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-4])
        done = self.refused("--learning_rate", "--lora_dropout", "--use_dora", weights, f"{self.folder / 'gone.json'}",
                            sentences=5, learning_rate=-1, lora_dropout=2, use_dora=True, model_name=folder,
                            dataset=self.folder / "gone.json")
        self.assertEqual(len(set(done.sentences())), 5)

    def test_rows_without_room_are_not_trained_on_in_silence(self):
        """Rows cut to the length given are counted on the banner."""
        done = self.train(2, self.new_output(), max_steps=1, max_seq_length=32)
        self.assertIn("8 cut at 32", done.output)


if __name__ == "__main__":
    unittest.main()
