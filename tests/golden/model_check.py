"""Logits, loss and LoRA gradients beside Transformers + PEFT (fp32, eager, CPU), run live.

    model_check.py PROBE CASE...     cases: the names in CASES below, or folder:PATH

Each case makes a small random model of odd sizes and an adapter (B not zero, alpha = 2r, once with rsLoRA), lays several
samples of different lengths end to end for model_probe, and compares with one call of a fresh Transformers model a sample.
Most samples are longer than the original context of the scaled RoPEs and than the windows; one starts in the middle, at
position 30. Tolerances are relative to the largest reference value: gradients 2e-5 a tensor (1e-4 for a folder of over 50 M
parameters, where one ulp of noise in the input moves them by 1.9e-5) and 1e-5 of the largest gradient over all tensors; loss
and logits 1e-5.
"""
import json
import os
import subprocess
import sys
import tempfile

import bitsandbytes
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

TEXTS = [
    "Below is an instruction that describes a task. Write a response that completes the request.\n\n### Instruction:\n"
    "Name the three primary colours.\n\n### Response:\nRed, yellow and blue are the three primary colours of a painter.",
    "Water boils at 100 degrees Celsius at sea level, and at a lower temperature on a high mountain.",
    "def area(width, height):\n    return width * height\n",
]
ALL = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
ODD = dict(hidden_size=96, intermediate_size=212, num_hidden_layers=3, num_attention_heads=6, num_key_value_heads=3,
           head_dim=80, vocab_size=1003, max_position_embeddings=48)
EVEN = dict(ODD, hidden_size=192, intermediate_size=320, head_dim=64)  # what NF4 needs: multiples of 64
FIRST_POSITION = {4: 30}  # of the sample of this number; the others start at 0


def rope(**parameters):
    return dict(rope_parameters=dict(rope_theta=10000.0, **parameters))


CASES = {
    "llama": lambda: LlamaConfig(**ODD, tie_word_embeddings=True),
    "subset": lambda: LlamaConfig(**ODD),
    "llama_biases": lambda: LlamaConfig(**ODD, attention_bias=True, mlp_bias=True),
    "linear": lambda: LlamaConfig(**ODD, **rope(rope_type="linear", factor=3.0)),
    "dynamic": lambda: LlamaConfig(**{**ODD, "max_position_embeddings": 32}, **rope(rope_type="dynamic", factor=2.5)),
    "llama3": lambda: LlamaConfig(**ODD, **rope(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                original_max_position_embeddings=32)),
    "yarn": lambda: LlamaConfig(**ODD, **rope(rope_type="yarn", factor=4.0, original_max_position_embeddings=32)),
    "yarn_in_full": lambda: LlamaConfig(**ODD, **rope(rope_type="yarn", factor=3.0, beta_fast=2.5, beta_slow=0.3,
                                                      mscale=1.4, mscale_all_dim=0.6, truncate=False,
                                                      original_max_position_embeddings=16)),
    "yarn_attention_factor": lambda: Qwen3Config(**ODD, **rope(rope_type="yarn", factor=3.0, attention_factor=0.7,
                                                               original_max_position_embeddings=16)),
    "mistral": lambda: MistralConfig(**ODD, sliding_window=13),
    "mistral_no_window": lambda: MistralConfig(**ODD, sliding_window=None, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**ODD, tie_word_embeddings=True),
    "qwen2_window": lambda: Qwen2Config(**ODD, use_sliding_window=True, sliding_window=13, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**ODD),
    "nf4": lambda: LlamaConfig(**EVEN, tie_word_embeddings=True),
    "nf4_files": lambda: Qwen3Config(**EVEN),
    "qwen3_biases": lambda: Qwen3Config(**ODD, attention_bias=True, tie_word_embeddings=True),
}


def made(case):
    model = AutoModelForCausalLM.from_config(CASES[case](), dtype=torch.float32, attn_implementation="eager")
    with torch.no_grad():  # at a scale at which all parts matter: as made, attention is nearly uniform
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.3 * torch.randn_like(p))
            elif name.endswith(".bias"):
                p.copy_(0.3 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) / p.shape[1]**0.5)
    return model


def rewrite_config(folder, case):
    """The spelling of Transformers 4 for two of the cases: rope_scaling beside rope_theta, no list of layer types."""
    path = os.path.join(folder, "config.json")
    with open(path) as file:
        config = json.load(file)
    if case == "yarn_in_full":
        scaling = config.pop("rope_parameters")
        config["rope_theta"] = scaling.pop("rope_theta")
        config["rope_scaling"] = dict(scaling, type=scaling.pop("rope_type"))
    if case == "qwen2_window":
        del config["layer_types"]
    with open(path, "w") as file:
        json.dump(config, file)


def round_absmax(weight, state):
    """bitsandbytes' CPU code often misses the nearest code of an absmax by a place or two (0.50.2: one in 600)."""
    absmax = weight.view(-1, 64).abs().amax(1) - state.offset
    blocks = torch.nn.functional.pad(absmax, (0, -len(absmax) % 256)).view(-1, 256)
    values = torch.cat([torch.tensor([-1.0]), state.state2.code[1:]])
    nearest = torch.bucketize(blocks * (1 / state.state2.absmax).unsqueeze(1), (values[1:] + values[:-1]) / 2)
    nearest = nearest.view(-1)[:len(absmax)].to(torch.uint8)
    off = (values[nearest.long()] - values[state.absmax.long()]).abs()
    assert off.max() < 0.02 and (off > 0).float().mean() < 0.03, f"absmax off by up to {off.max()}, {off.mean()} on average"
    state.absmax = nearest


def quantised(folder, target):
    """Writes the model with the weights of bitsandbytes' decoder; what is not quantised stays as it is."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    for name, module in model.named_modules():
        if isinstance(module, torch.nn.Linear) and name != "lm_head":
            codes, state = bitsandbytes.functional.quantize_4bit(module.weight.data, quant_type="nf4",
                                                                 compress_statistics=True)
            round_absmax(module.weight.data, state)
            module.weight.data = bitsandbytes.functional.dequantize_4bit(codes, state)
    model.save_pretrained(target)


def quantised_files(folder, target, decoded):
    """Has Transformers and bitsandbytes write a 4-bit model folder of bf16 weights, and beside it what they decode to."""
    how = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_use_double_quant=True,
                             llm_int8_skip_modules=["lm_head", "model.layers.1.mlp.up_proj"])
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, quantization_config=how, device_map="cpu")
    model.save_pretrained(target)
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    found = dict(model.named_modules())
    count = 0
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            module = found[name.rpartition(".")[0]]
            weight = getattr(module, name.rpartition(".")[2])
            if isinstance(module, bitsandbytes.nn.Linear4bit):
                weight = bitsandbytes.functional.dequantize_4bit(weight.data, weight.quant_state)
                assert weight.dtype == torch.bfloat16
                count += 1
            parameter.copy_(weight.float())
    assert count == 3 * 7 - 1, count
    plain.save_pretrained(decoded)


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
    for sample, first in samples:
        # A RoPE of the type dynamic keeps what it grew to in earlier calls.
        base.model.rotary_emb = type(base.model.rotary_emb)(config=base.config)
        positions = torch.arange(first, first + len(sample)).unsqueeze(0)
        out = peft(torch.tensor([sample]), position_ids=positions).logits[0]
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
    if case.startswith("folder:"):
        folder = case[len("folder:"):]
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    else:
        folder = os.path.join(work, "model")
        model = made(case)
        model.save_pretrained(folder)
        rewrite_config(folder, case)
    vocabulary = model.config.vocab_size
    parameters = sum(p.numel() for p in model.parameters())
    adapter = os.path.join(work, "adapter")
    write_adapter(model, adapter, case)
    samples = [torch.randint(0, vocabulary, (n,)).tolist() for n in (37, 2, 64, 1, 11)]
    if parameters > 50_000_000:  # a trained model gets text: on random ids its gradients are noise of its rounding
        tokenizer = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        samples = [tokenizer.encode(text).ids for text in TEXTS]
    samples = [(ids, FIRST_POSITION.get(i, 0)) for i, ids in enumerate(samples)]
    with open(os.path.join(work, "samples.json"), "w") as file:
        json.dump([{"ids": ids, "first_position": first} for ids, first in samples], file)
    judged, four_bits = folder, []
    if case == "nf4":
        judged, four_bits = os.path.join(work, "decoded"), ["4bit"]
        quantised(folder, judged)
    if case == "nf4_files":
        original, folder, judged = folder, os.path.join(work, "quantised"), os.path.join(work, "decoded")
        quantised_files(original, folder, judged)
    want_logits, want_nll, want_gradients = reference(judged, adapter, samples)
    scale = max(g.abs().max() for g in want_gradients.values())
    bound = 1e-4 if parameters > 50_000_000 else 2e-5
    for mode in ("keep", "recompute"):
        out = os.path.join(work, f"{mode}.safetensors")
        subprocess.run([probe, folder, adapter, os.path.join(work, "samples.json"), out, "cpu", "float32", mode,
                        *four_bits],
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
