"""Training step by step beside Transformers and PEFT, run live: the same adapter, the same rows, the same curve.

RANKTUNE_TEST_STEPS says how many steps (60 if it is not set; the release check takes 200). At the learning rate used
here two runs of PEFT whose adapters differ in the last bit stay within 1e-6 of each other over 200 steps; at five times
that rate they part, and a comparison would say nothing."""

import json
import os
import unittest

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, get_linear_schedule_with_warmup

import harness

STEPS = int(os.environ.get("RANKTUNE_TEST_STEPS", "60"))
WINDOW = 4
WARMUP = 5
FIRST_LINE = ("Below is an instruction that describes a task, paired with an input that provides further context. "
              "Write a response that appropriately completes the request.")


def prompt(row, eos):
    return (f"{FIRST_LINE}\n\n    ### Instruction:\n    {row['instruction']}\n\n    ### Input:\n    {row['input']}"
            f"\n\n    ### Response:\n    {row['output']}{eos}")


def reference_curve(model_folder, adapter_folder, rows, longest, learning_rate):
    """Losses, gradient norms, target tokens, learning rates of each step, and the adapter at the end."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager")
    model = PeftModel.from_pretrained(base, adapter_folder, is_trainable=True)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, WARMUP, STEPS)
    texts = [tokenizer(prompt(row, tokenizer.eos_token)).input_ids[:longest] for row in rows]
    curve = []
    for step in range(STEPS):
        batch = [texts[(step * WINDOW + i) % len(texts)] for i in range(WINDOW)]
        targets = sum(len(ids) - 1 for ids in batch)
        total = 0.0
        for ids in batch:
            ids = torch.tensor([ids])
            scores = model(ids).logits[0, :-1]
            loss = torch.nn.functional.cross_entropy(scores, ids[0, 1:], reduction="sum") / targets
            loss.backward()
            total += loss.item()
        norm = torch.nn.utils.clip_grad_norm_(trained, 1.0).item()
        curve.append((total, norm, targets, optimizer.param_groups[0]["lr"]))
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    weights = {name.replace(".default", ""): p.detach().numpy() for name, p in model.named_parameters() if p.requires_grad}
    return np.array(curve), weights


class Curve(harness.RunTest):
    rows = 40  # whole windows of 4, so that epochs follow each other as the reference takes them

    def compare(self, model, adapter, data, rows, longest=256, learning_rate=1e-3, **flags):
        output = self.new_output()
        self.train(2, output, model_name=model, dataset=data, init_adapter=adapter, shuffle=False, max_steps=STEPS,
                   gradient_accumulation_steps=WINDOW // 2, learning_rate=learning_rate, max_seq_length=longest,
                   warmup_steps=WARMUP, r=None, lora_alpha=None, **flags)
        expected, weights = reference_curve(model, adapter, rows, longest, learning_rate)
        found = harness.steps(output)
        self.assertEqual(len(found), STEPS)
        self.assertEqual(found["target_tokens"].tolist(), expected[:, 2].astype(int).tolist())
        np.testing.assert_allclose(found["learning_rate"], expected[:, 3], rtol=1e-12, atol=1e-15)
        loss = np.abs(found["loss"] - expected[:, 0]).max()
        norm = np.abs(found["grad_norm"] / expected[:, 1] - 1).max()
        trained = harness.adapter(output / "adapter")
        self.assertEqual(sorted(trained), sorted(weights))
        parts = {part: max(np.abs(trained[name] - values).max() / np.abs(values).max()
                           for name, values in weights.items() if part in name) for part in ["lora_A", "lora_B"]}
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
