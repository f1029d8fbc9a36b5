"""Logits, loss and LoRA gradients beside Transformers + PEFT (fp32, eager, CPU), run live.

    model_check.py PROBE CASE...     cases: llama llama3_rope linear_rope qwen3 subset folder:PATH

Each case makes a small random model and adapter (B not zero, alpha = 2r, once with rsLoRA), lays several samples of
different lengths end to end for model_probe, and compares with one Transformers call a sample. Tolerances are relative to the
largest reference value: gradients 2e-5 a tensor (1e-4 for a folder of over 50 M parameters, where one ulp of noise in the
input moves them by 1.9e-5) and 1e-5 of the largest gradient over all tensors; loss and logits 1e-5.
"""
import json
import os
import subprocess
import sys
import tempfile

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, LlamaConfig, Qwen3Config

TEXTS = [
    "Below is an instruction that describes a task. Write a response that completes the request.\n\n### Instruction:\n"
    "Name the three primary colours.\n\n### Response:\nRed, yellow and blue are the three primary colours of a painter.",
    "Water boils at 100 degrees Celsius at sea level, and at a lower temperature on a high mountain.",
    "def area(width, height):\n    return width * height\n",
]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ODD = dict(hidden_size=96, intermediate_size=212, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
           head_dim=80, vocab_size=1003, max_position_embeddings=128)


def made(config):
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.3 * torch.randn_like(p))
    return model


def model_of(case):
    if case.startswith("folder:"):
        return None
    if case in ("llama", "subset"):
        return made(LlamaConfig(**ODD, tie_word_embeddings=case == "llama"))
    if case == "llama3_rope":
        return made(LlamaConfig(**ODD, rope_parameters=dict(
            rope_type="llama3", rope_theta=500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
            original_max_position_embeddings=32)))
    if case == "linear_rope":
        return made(LlamaConfig(**ODD, rope_parameters=dict(rope_type="linear", rope_theta=10000.0, factor=3.0)))
    if case == "qwen3":
        return made(Qwen3Config(**ODD, tie_word_embeddings=False))
    raise SystemExit(f"unknown case {case}")


def write_adapter(base, folder, case):
    targets = ["q_proj", "v_proj", "up_proj"] if case == "subset" else ALL
    config = LoraConfig(r=5 if case == "subset" else 8, lora_alpha=10 if case == "subset" else 16,
                        target_modules=targets, use_rslora=case == "qwen3", task_type="CAUSAL_LM")
    peft = get_peft_model(base, config)
    with torch.no_grad():
        for name, p in peft.named_parameters():
            if "lora_B" in name:
                p.copy_(0.05 * torch.randn_like(p))
    peft.save_pretrained(folder)


def reference(folder, adapter, samples):
    base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    peft = PeftModel.from_pretrained(base, adapter, is_trainable=True)
    logits, nll = [], 0.0
    for sample in samples:
        out = peft(torch.tensor([sample])).logits[0]
        logits.append(out.detach())
        if len(sample) == 1:
            continue  # nothing to predict
        # The loss of the fp32 logits in float64: PyTorch's fp32 log_softmax over 49,152 columns is off by 3e-6 of the loss,
        # the same for every way to compute the logits, and that alone moves gradients by 5e-4 of a tensor's largest.
        loss = torch.nn.functional.cross_entropy(out[:-1].double(), torch.tensor(sample[1:]), reduction="sum")
        loss.backward()
        nll += loss.item()
    gradients = {n.replace(".default", ""): p.grad for n, p in peft.named_parameters() if p.grad is not None}
    return torch.cat(logits), nll, gradients


def relative(a, b, scale=None):
    return ((a - b).abs().max() / (b.abs().max() if scale is None else scale)).item()


def check(probe, case, work):
    torch.manual_seed(int.from_bytes(os.urandom(4), "little"))
    print(f"{case}: torch seed {torch.initial_seed()}")
    model = model_of(case)
    folder = case[len("folder:"):] if model is None else os.path.join(work, "model")
    if model is not None:
        model.save_pretrained(folder)
    else:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    vocabulary = model.config.vocab_size
    parameters = sum(p.numel() for p in model.parameters())
    adapter = os.path.join(work, "adapter")
    write_adapter(model, adapter, case)
    samples = [torch.randint(0, vocabulary, (n,)).tolist() for n in (37, 2, 64, 1, 11)]
    if parameters > 50_000_000:  # a trained model gets text: on random ids its gradients are noise of its rounding
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        samples = [tokenizer.encode(text).ids for text in TEXTS]
    with open(os.path.join(work, "samples.json"), "w") as file:
        json.dump(samples, file)
    want_logits, want_nll, want_gradients = reference(folder, adapter, samples)
    scale = max(g.abs().max() for g in want_gradients.values())
    bound = 1e-4 if parameters > 50_000_000 else 2e-5
    for mode in ("keep", "recompute"):
        out = os.path.join(work, f"{mode}.safetensors")
        subprocess.run([probe, folder, adapter, os.path.join(work, "samples.json"), out, "cpu", "float32", mode],
                       check=True)
        got = load_file(out)
        assert set(got) - {"logits", "nll_sum"} == set(want_gradients), "not the same trained matrices"
        figures = {
            "logits": relative(got["logits"], want_logits),
            "loss": abs(got["nll_sum"].item() / want_nll - 1),
            "gradient, worst tensor": max(relative(got[n], g) for n, g in want_gradients.items()),
            "gradient, of the largest": max(relative(got[n], g, scale) for n, g in want_gradients.items()),
        }
        print(f"{case} ({mode}): " + ", ".join(f"{k} {v:.1e}" for k, v in figures.items()))
        assert figures["logits"] <= 1e-5 and figures["loss"] <= 1e-5, "logits or loss differ"
        assert figures["gradient, worst tensor"] <= bound, f"a gradient differs by more than {bound}"
        assert figures["gradient, of the largest"] <= 1e-5, "gradients differ by more than 1e-5 of the largest"


if __name__ == "__main__":
    torch.set_num_threads(2)
    for name in sys.argv[2:]:
        with tempfile.TemporaryDirectory() as directory:
            check(sys.argv[1], name, directory)
