"""A run of ranktune and the same training by Transformers and PEFT, step by step: what the curve tests share."""

import os
import time

import numpy as np
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, BitsAndBytesConfig, get_linear_schedule_with_warmup

import harness

WARMUP = 5
FIRST_LINE = ("Below is an instruction that describes a task, paired with an input that provides further context. "
              "Write a response that appropriately completes the request.")


def prompt(row, eos):
    return (f"{FIRST_LINE}\n\n    ### Instruction:\n    {row['instruction']}\n\n    ### Input:\n    {row['input']}"
            f"\n\n    ### Response:\n    {row['output']}{eos}")


def reference_curve(model_folder, adapter_folder, rows, steps, window, longest, learning_rate, four_bits=False):
    """Losses, gradient norms, target tokens, learning rates of each step, and the adapter at the end; fp32, eager attention.

    The loss of the logits is taken in float64: PyTorch's fp32 log_softmax is off by 3e-6 of the loss over a vocabulary of
    49,152."""
    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(model_folder)
    how = {}
    if four_bits:
        how = {"device_map": "cpu", "quantization_config": BitsAndBytesConfig(
            load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32)}
    base = AutoModelForCausalLM.from_pretrained(model_folder, dtype=torch.float32, attn_implementation="eager", **how)
    model = PeftModel.from_pretrained(base, adapter_folder, is_trainable=True)
    model.train()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=learning_rate, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    schedule = get_linear_schedule_with_warmup(optimizer, WARMUP, steps)
    texts = [tokenizer(prompt(row, tokenizer.eos_token)).input_ids[:longest] for row in rows]
    curve = []
    for step in range(steps):
        batch = [texts[(step * window + i) % len(texts)] for i in range(window)]
        targets = sum(len(ids) - 1 for ids in batch)
        total = 0.0
        for ids in batch:
            ids = torch.tensor([ids])
            scores = model(ids).logits[0, :-1].double()
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


class CurveTest(harness.RunTest):
    """The program on two ranks, each with half of a step's samples, beside the reference. Rows have to be whole windows, so
    that epochs follow each other as the reference takes them."""

    def curves(self, model, adapter, data, rows, steps, window, longest, learning_rate, four_bits=False):
        """/train/steps, the reference's curve, and the largest relative difference of the final A and B."""
        output = self.new_output()
        began = time.monotonic()
        job = self.start(2, output, model_name=model, dataset=data, init_adapter=adapter, shuffle=False, max_steps=steps,
                         gradient_accumulation_steps=window // 2, learning_rate=learning_rate, max_seq_length=longest,
                         warmup_steps=WARMUP, r=None, lora_alpha=None, **({"load_in_4bit": True} if four_bits else {}))
        done = job.finish(limit=120 + 10 * steps)
        self.assertEqual(done.code, 0, done)
        ours = time.monotonic() - began
        expected, weights = reference_curve(model, adapter, rows, steps, window, longest, learning_rate,
                                            four_bits)
        print(f"ranktune {ours:.0f} s, Transformers + PEFT {time.monotonic() - began - ours:.0f} s", flush=True)
        found = harness.steps(output)
        self.assertEqual(len(found), steps)
        self.assertEqual(found["target_tokens"].tolist(), expected[:, 2].astype(int).tolist())
        np.testing.assert_allclose(found["learning_rate"], expected[:, 3], rtol=1e-12, atol=1e-15)
        trained = harness.adapter(output / "adapter")
        self.assertEqual(sorted(trained), sorted(weights))
        parts = {part: max(np.abs(trained[name] - values).max() / np.abs(values).max()
                           for name, values in weights.items() if part in name) for part in ["lora_A", "lora_B"]}
        return found, expected, parts
