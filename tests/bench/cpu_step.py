"""Time of an optimizer step on the CPU: ranktune beside Transformers + PEFT, the same model, rows and threads, in one run.

    cpu_step.py RANKTUNE MODEL_FOLDER DATASET.json [--steps 6] [--threads 2] [--batch 2] [--accumulation 4]

One process each, one after the other; the first step of each is left out; prints the median seconds of a step and the ratio.
Peers' figures move from run to run, so only the ratio of one run says something.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

TEMPLATE = ("Below is an instruction that describes a task, paired with an input that provides further context. Write a "
            "response that appropriately completes the request.\n\n    ### Instruction:\n    {}\n\n    ### Input:\n    {}"
            "\n\n    ### Response:\n    {}")


def ranktune_seconds(args, output):
    environment = dict(os.environ, OMP_NUM_THREADS=str(args.threads))
    subprocess.run([args.ranktune, "train", "--model_name", args.model, "--dataset", args.dataset, "--output_dir", output,
                    "--no-shuffle", "--device", "cpu", "--max_steps", str(args.steps), "--per_device_train_batch_size",
                    str(args.batch), "--gradient_accumulation_steps", str(args.accumulation)],
                   env=environment, check=True, stdout=subprocess.DEVNULL)
    import h5py
    with h5py.File(output + "/metrics.h5") as file:
        rows = file["/train/steps"][:]
    return [float(x) for x in rows["step_seconds"][1:]], [float(x) for x in rows["loss"]], [int(x) for x in rows["tokens"]]


def peft_seconds(args):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    # As tokenizer.json says; the classes of some models rebuild it without its pre-tokenizer.
    with open(args.model + "/tokenizer_config.json") as file:
        eos = json.load(file)["eos_token"]
    tokenizer = PreTrainedTokenizerFast(tokenizer_file=args.model + "/tokenizer.json", eos_token=eos)
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32)
    model = get_peft_model(model, LoraConfig(r=16, lora_alpha=16, target_modules=[
        "q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"], task_type="CAUSAL_LM"))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=2e-4, weight_decay=0.01)
    with open(args.dataset) as file:
        rows = json.load(file)
    texts = [TEMPLATE.format(r["instruction"], r.get("input") or "", r["output"]) + tokenizer.eos_token for r in rows]
    seconds, losses, tokens, cursor = [], [], [], 0
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else tokenizer.eos_token_id
    for _ in range(args.steps):
        begin = time.perf_counter()
        batches = []
        for _ in range(args.accumulation):
            ids = [tokenizer(texts[(cursor + i) % len(texts)])["input_ids"] for i in range(args.batch)]
            cursor += args.batch
            longest = max(map(len, ids))
            batches.append((torch.tensor([x + [pad] * (longest - len(x)) for x in ids]),
                            torch.tensor([[1] * len(x) + [0] * (longest - len(x)) for x in ids])))
        targets = sum(int(mask[:, 1:].sum()) for _, mask in batches)
        total = 0.0
        for ids, mask in batches:
            labels = ids.masked_fill(mask == 0, -100)
            logits = model(input_ids=ids, attention_mask=mask).logits
            loss = torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten(),
                                                     ignore_index=-100, reduction="sum") / targets
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - begin)
        losses.append(total)
        tokens.append(sum(int(mask.sum()) for _, mask in batches))
    return seconds[1:], losses, tokens


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("ranktune", "model", "dataset"):
        parser.add_argument(name)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--accumulation", type=int, default=4)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        ours, our_losses, our_tokens = ranktune_seconds(args, directory + "/run")
    theirs, their_losses, their_tokens = peft_seconds(args)
    assert our_tokens == their_tokens, f"not the same tokens: {our_tokens} {their_tokens}"
    assert abs(our_losses[0] - their_losses[0]) < 1e-4, "not the same first loss"
    a, b = statistics.median(ours), statistics.median(theirs)
    print(f"tokens a step {our_tokens}")
    print(f"ranktune {a:.3f} s a step, Transformers + PEFT {b:.3f} s, ratio {a / b:.2f} "
          f"({args.threads} threads, {args.batch} x {args.accumulation} samples a step)")
    sys.exit(0 if a <= b else 1)
