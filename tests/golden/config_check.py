"""What ranktune reads from config.json beside what Transformers builds from it, live, on random changes of small ones.

    config_check.py PROBE COUNT [FOLDER]     FOLDER: real configurations, each FOLDER/NAME/config.json

Each configuration is one of a family's with one to three of its keys taken away, set to null or to another value. What
ranktune accepts, Transformers has to build with the same sizes, parameters, biases, windows and RoPE frequencies; what
ranktune refuses, it has to refuse by the name of a key that was changed. Real configurations have to be accepted."""
import copy
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile

import torch
from transformers import AutoConfig, AutoModelForCausalLM

ABSENT = "(absent)"
FAMILIES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM", "qwen2": "Qwen2ForCausalLM",
            "qwen3": "Qwen3ForCausalLM"}
BASE = dict(vocab_size=103, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
            num_key_value_heads=2, head_dim=16, hidden_act="silu", max_position_embeddings=512, rms_norm_eps=1e-5, rope_theta=10000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=128)
ROPE = [
    None, {}, dict(rope_type="default"), dict(rope_type="default", rope_theta=5000.0), dict(type="linear", factor=4),
    dict(rope_type="linear", factor=2.5), dict(rope_type="linear"), dict(rope_type="dynamic", factor=2.0),
    dict(type="dynamic", factor=3.0, rope_theta=777.0), dict(rope_type="longrope", factor=2.0), YARN, dict(type="yarn", factor=2.0),
    dict(YARN, factor=None), dict(YARN, attention_factor=0.8), dict(YARN, mscale=1.2, mscale_all_dim=0.7),
    dict(YARN, mscale=1.2), dict(YARN, beta_fast=20.0, beta_slow=2.0), dict(YARN, truncate=False), dict(YARN, truncate=None),
    dict(YARN, partial_rotary_factor=0.5), dict(YARN, alpha=2.0),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=128),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0),
    dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0), dict(rope_type="su", factor=2.0), dict(factor=2.0),
]
CHANGES = {
    "hidden_size": [48, 60, 128, "64", -1], "num_attention_heads": [ABSENT, 8, 3, 0, 2.5],
    "num_key_value_heads": [ABSENT, None, 1, 4, 3, 0], "head_dim": [ABSENT, None, 20, 32, 15, 0],
    "num_hidden_layers": [1, 2, 5, 0], "vocab_size": [7, 0, "many"], "intermediate_size": [1, 33, 0],
    "max_position_embeddings": [ABSENT, 64, 2048, 0], "rms_norm_eps": [ABSENT, 1e-6, 1e-3, 0.0, "small"],
    "initializer_range": [ABSENT, 0.5], "tie_word_embeddings": [ABSENT, True, False, "yes"],
    "attention_bias": [ABSENT, True, False, None], "mlp_bias": [ABSENT, True, False],
    "hidden_act": [ABSENT, "swish", "gelu", "relu"], "attention_dropout": [ABSENT, 0.0, 0.1],
    "use_sliding_window": [ABSENT, True, False], "sliding_window": [ABSENT, None, 7, 4096, 0],
    "max_window_layers": [ABSENT, 0, 1, 2, 28], "rope_theta": [ABSENT, 1000000, 500.5, 0, "10000"],
    "layer_types": [None, ["full_attention"] * 3, ["sliding_attention"] * 3,
                    ["full_attention", "sliding_attention", "full_attention"], ["full_attention"], ["linear_attention"] * 3],
    "rope_scaling": ROPE, "rope_parameters": ROPE, "original_max_position_embeddings": [ABSENT, 256],
    "partial_rotary_factor": [1.0, 0.5, 0.0], "pretraining_tp": [2], "use_cache": [False], "logits_scaling": [1.0, 8.0, 0.0],
}


def indivisible(config):
    hidden, heads = config["hidden_size"], config.get("num_attention_heads")
    return isinstance(hidden, int) and isinstance(heads, int) and heads > 0 and hidden % heads != 0


def judged(config):
    """Transformers 5 is no judge of null where it demands a value and its version 4 took the default, nor of an absent head_dim
    in its Ministral (a Mistral with layer_types) and Qwen2, nor of a Llama whose heads do not divide hidden_size though head_dim
    is given, which it refuses without need."""
    def nothing(key):
        return key in config and config[key] is None

    family = config["model_type"]
    return not (nothing("attention_bias") or (nothing("num_key_value_heads") and family == "mistral") or
                (nothing("head_dim") and family == "qwen2") or
                (family == "llama" and config.get("head_dim") and indivisible(config)) or
                (family == "mistral" and "layer_types" in config and config.get("head_dim") is None))


def changed(generator):
    family = generator.choice(sorted(FAMILIES))
    config = dict(copy.deepcopy(BASE), model_type=family, architectures=[FAMILIES[family]])
    changes = generator.sample(sorted(CHANGES), generator.randint(1, 3))
    for key in changes:
        value = copy.deepcopy(generator.choice(CHANGES[key]))
        config.pop(key, None)
        if value != ABSENT:
            config[key] = value
    return (config, changes) if judged(config) else changed(generator)


def windows(config):
    window = getattr(config, "sliding_window", None)
    if config.model_type == "llama" or window is None:
        return [0] * config.num_hidden_layers
    if config.model_type == "mistral":
        return [window] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else 0 for kind in config.layer_types]


def built(object, folder):
    """What Transformers makes of it: the values as config_probe names them."""
    (folder / "config.json").write_text(json.dumps(object))
    config = AutoConfig.from_pretrained(folder)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    layer, rotary = model.model.layers[0], type(model.model.rotary_emb)(config=config)
    names = ["vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
             "num_key_value_heads", "max_position_embeddings", "rms_norm_eps", "initializer_range", "tie_word_embeddings"]
    found = {name: getattr(config, name) for name in names}
    found.update(head_dim=layer.self_attn.head_dim, parameters=sum(p.numel() for p in model.parameters()),
                 qk_norm=hasattr(layer.self_attn, "q_norm"), qkv_bias=layer.self_attn.q_proj.bias is not None,
                 o_bias=layer.self_attn.o_proj.bias is not None, mlp_bias=layer.mlp.up_proj.bias is not None,
                 windows=windows(config), rope_factor_of_table=rotary.attention_scaling,
                 inverse_frequencies=rotary.inv_freq.tolist())
    return found


def near(a, b):
    return abs(a - b) <= 3e-7 * abs(b)  # a few units in the last place of fp32


def same(name, ours, theirs):
    if name == "inverse_frequencies":
        return len(ours) == len(theirs) and all(map(near, ours, theirs))
    return near(ours, theirs) if isinstance(theirs, float) else ours == theirs


def problem(object, changes, ours, folder):
    """Why this comparison fails, or None."""
    if "refused" in ours:
        text = " ".join(ours["refused"])
        return None if any(key in text for key in changes) else f"refused without naming one of {changes}: {text}"
    try:
        theirs = built(object, folder)
    except Exception as error:  # Transformers refuses by many kinds of exceptions
        return f"accepted, but Transformers says {type(error).__name__}: {str(error)[:200]}"
    wrong = {name: (ours[name], theirs[name]) for name in theirs if not same(name, ours[name], theirs[name])}
    return f"differs (ranktune, Transformers): {wrong}" if wrong else None


def probe(program, objects, folder):
    path = folder / "list.json"
    path.write_text(json.dumps(objects))
    return json.loads(subprocess.run([program, path], check=True, stdout=subprocess.PIPE).stdout)


def main(program, count, real):
    seed = int(os.environ.get("RANKTUNE_TEST_SEED") or int.from_bytes(os.urandom(4), "little"))
    generator = random.Random(seed)
    cases = [changed(generator) for _ in range(count)]
    cases += [(json.loads(path.read_text()), []) for path in sorted(real.glob("*/config.json"))] if real else []
    with tempfile.TemporaryDirectory() as directory:
        folder = pathlib.Path(directory)
        answers = probe(program, [object for object, _ in cases], folder)
        problems = []
        for (object, changes), ours in zip(cases, answers):
            why = problem(object, changes, ours, folder)
            if why:
                problems.append(f"{json.dumps({k: object.get(k, ABSENT) for k in ['model_type', *changes]})}: {why}")
    accepted = sum("refused" not in ours for ours in answers)
    print(f"seed {seed}: {len(cases)} configurations, {accepted} accepted, {len(problems)} problems")
    print("\n".join(problems[:10]))
    assert accepted > count // 5 and not problems


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), pathlib.Path(sys.argv[3]) if len(sys.argv) > 3 else None)
