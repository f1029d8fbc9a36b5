"""What the end-to-end tests share: a small random model with its tokenizer and dataset, made on the spot, a way to
run the program on several ranks, and readers of what it wrote.

The program is named by RANKTUNE_BINARY. Nothing is read from outside the temporary folder of a test, the Hugging Face
cache included."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import h5py
import numpy as np
from safetensors.numpy import load_file, save_file

BINARY = os.environ.get("RANKTUNE_BINARY", "")
TEST_DATA = pathlib.Path(os.environ.get("RANKTUNE_TEST_DATA", "") or "/nonexistent")
VOCABULARY = 384
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
WORDS = ("the cat sat on a mat while seven birds sang about rivers and old stones name three colours of winter light "
         "write one line that explains why bread rises when it is warm and what a small boat needs in strong wind").split()


# ---- a model, its tokenizer, a dataset ----

def make_tokenizer(folder, vocabulary=VOCABULARY, extra_tokens=()):
    """A byte-level BPE tokenizer trained on WORDS, with exactly `vocabulary` ids before the extra tokens."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    generator = random.Random(1)
    corpus = [" ".join(generator.choices(WORDS, k=12)) for _ in range(300)]
    corpus += ["Below is an instruction that describes a task", "### Instruction: ### Input: ### Response:"] * 50
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, special_tokens=["<|end|>", "<|pad|>"], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(corpus, trainer)
    assert tokenizer.get_vocab_size() == vocabulary, tokenizer.get_vocab_size()
    tokenizer.add_tokens(list(extra_tokens))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_json(folder / "tokenizer_config.json",
               {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "pad_token": "<|pad|>"})


def llama_config(**changes):
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 48, "intermediate_size": 96,
              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12,
              "vocab_size": VOCABULARY, "max_position_embeddings": 512, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
              "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False,
              "bos_token_id": None, "eos_token_id": 0, "torch_dtype": "float32"}
    config.update(changes)
    return config


def qwen3_config(**changes):
    return llama_config(architectures=["Qwen3ForCausalLM"], model_type="qwen3", use_sliding_window=False, **changes)


def qwen2_config(**changes):
    return llama_config(architectures=["Qwen2ForCausalLM"], model_type="qwen2", attention_bias=True,
                        use_sliding_window=False, **changes)


def random_weights(config, seed=0):
    """Weights under Hugging Face's names, at a scale at which all layers matter."""
    generator = np.random.default_rng(seed)
    hidden, inner, size = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size

    def matrix(rows, columns):
        return (generator.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)

    def norm(width):
        return (1 + 0.1 * generator.standard_normal(width)).astype(np.float32)

    weights = {"model.embed_tokens.weight": matrix(config["vocab_size"], hidden), "model.norm.weight": norm(hidden)}
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}."
        weights[layer + "input_layernorm.weight"] = norm(hidden)
        weights[layer + "post_attention_layernorm.weight"] = norm(hidden)
        for name, shape in {"self_attn.q_proj": (queries, hidden), "self_attn.k_proj": (keys, hidden),
                            "self_attn.v_proj": (keys, hidden), "self_attn.o_proj": (hidden, queries),
                            "mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden),
                            "mlp.down_proj": (hidden, inner)}.items():
            weights[layer + name + ".weight"] = matrix(*shape)
            if config["model_type"] == "qwen2" and name.split(".")[1] in ("q_proj", "k_proj", "v_proj"):
                weights[layer + name + ".bias"] = (0.3 * generator.standard_normal(shape[0])).astype(np.float32)
        if config["model_type"] == "qwen3":
            weights[layer + "self_attn.q_norm.weight"] = norm(size)
            weights[layer + "self_attn.k_norm.weight"] = norm(size)
    return weights


def make_model(folder, config=None, seed=0):
    config = config or llama_config()
    make_tokenizer(folder)
    write_json(folder / "config.json", config)
    save_file(random_weights(config, seed), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def make_rows(count, seed=0, longest=24):
    """Alpaca rows of many different lengths, so that a step's token count tells which rows are in it."""
    generator = random.Random(seed)

    def text(least):
        return " ".join(generator.choices(WORDS, k=generator.randint(least, longest)))

    return [{"instruction": text(1), "input": text(1) if generator.random() < 0.5 else "", "output": text(1)}
            for _ in range(count)]


def make_adapter(folder, config, r=8, alpha=16, rslora=False, seed=5, size_of_b=0.05):
    """A PEFT adapter on all seven projections whose B is not zero, in the files that PEFT writes."""
    generator = np.random.default_rng(seed)
    tensors = {}
    for name, weight in random_weights(config).items():
        if not any(name.endswith(p + ".weight") for p in PROJECTIONS):
            continue
        rows, columns = weight.shape
        stem = "base_model.model." + name.removesuffix(".weight")
        tensors[stem + ".lora_A.weight"] = (generator.uniform(-1, 1, (r, columns)) / np.sqrt(columns)).astype(np.float32)
        tensors[stem + ".lora_B.weight"] = (size_of_b * generator.standard_normal((rows, r))).astype(np.float32)
    folder.mkdir(parents=True)
    save_file(tensors, folder / "adapter_model.safetensors", metadata={"format": "pt"})
    write_json(folder / "adapter_config.json",
               {"peft_type": "LORA", "task_type": "CAUSAL_LM", "base_model_name_or_path": "base", "r": r,
                "lora_alpha": alpha, "lora_dropout": 0.0, "bias": "none", "target_modules": PROJECTIONS,
                "use_rslora": rslora, "inference_mode": True, "fan_in_fan_out": False})
    return folder


def write_json(path, value):
    path.write_text(json.dumps(value))
    return path


# ---- what a run wrote ----

def table(output, name):
    with h5py.File(output / "metrics.h5", "r") as file:
        return file[name][:]


def steps(output):
    return table(output, "/train/steps")


def events(output):
    return [(row["kind"].decode(), int(row["step"]), row["message"].decode()) for row in table(output, "/events")]


def attributes(output):
    with h5py.File(output / "metrics.h5", "r") as file:
        return dict(file.attrs)


def adapter(folder):
    return load_file(folder / "adapter_model.safetensors")


def checkpoints(output):
    """The finished ones, oldest first; those being written or deleted have another name."""
    found = [p for p in output.glob("checkpoint-*") if p.name.removeprefix("checkpoint-").isdigit()]
    return sorted(found)


def tree(folder):
    """Every file below a folder with its content, to tell whether anything changed."""
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


# ---- running the program ----

def descendants(pid):
    """All processes below one, by the parents that /proc names."""
    children = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            fields = pathlib.Path("/proc", entry, "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue  # gone meanwhile
        children.setdefault(int(fields[1]), []).append(int(entry))
    found, todo = [], [pid]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def alive(pid):
    """Whether a process is there and more than a zombie."""
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except OSError:
        return False


def flags_of(flags):
    """{'max_steps': 3, 'shuffle': False} as --max_steps 3 --no-shuffle."""
    words = []
    for name, value in flags.items():
        if value is True:
            words.append("--" + name)
        elif value is False:
            words.append("--no-" + name)
        elif value is not None:
            words += ["--" + name, str(value)]
    return words


class Finished:
    def __init__(self, code, output, errors, seconds):
        self.code, self.output, self.errors, self.seconds = code, output, errors, seconds

    def __str__(self):
        return f"exit code {self.code} after {self.seconds:.1f} s\n{self.output[-3000:]}\n{self.errors[-3000:]}"

    def sentences(self):
        mark = "ranktune: error: "
        return [line.removeprefix(mark) for line in self.errors.splitlines() if line.startswith(mark)]


class Job:
    """A run in the background. Its output goes to files, so that nothing waits for a reader."""

    def __init__(self, ranks, words, environment, folder):
        self.began = time.monotonic()
        self.files = [tempfile.TemporaryFile("w+", dir=folder), tempfile.TemporaryFile("w+", dir=folder)]
        command = ["mpirun", "--oversubscribe", "--bind-to", "none", "-np", str(ranks), BINARY, *words]
        self.process = subprocess.Popen(command, env=environment, cwd=folder, stdout=self.files[0],
                                        stderr=self.files[1], stdin=subprocess.DEVNULL, start_new_session=True)

    def text(self, which=0):
        size = os.fstat(self.files[which].fileno()).st_size
        return os.pread(self.files[which].fileno(), size, 0).decode(errors="replace")

    def running(self):
        return self.process.poll() is None

    def rank_pids(self):
        """The processes that run the program itself, in the order of their start."""
        found = []
        for pid in sorted(descendants(self.process.pid)):
            try:
                if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(BINARY):
                    found.append(pid)
            except OSError:
                continue  # gone meanwhile
        return found

    def wait_for(self, condition, limit=60):
        """Until the condition holds (True) or the run is over (False)."""
        end = time.monotonic() + limit
        while not condition():
            if not self.running():
                return False
            assert time.monotonic() < end, f"nothing happened in {limit} s\n{self.text(0)}\n{self.text(1)}"
            time.sleep(0.005)
        return True

    def wait_for_step(self, step, limit=60):
        line = re.compile(rf"^step +{step}/", re.MULTILINE)
        return self.wait_for(lambda: line.search(self.text()), limit)

    def kill(self):
        """SIGKILL to mpirun and all ranks, as when a node is lost. True if it was still running."""
        if not self.running():
            return False
        for pid in [self.process.pid, *descendants(self.process.pid)]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        return True

    def close(self):
        self.kill()
        for file in self.files:
            file.close()

    def finish(self, limit=120):
        try:
            self.process.wait(limit)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"still running after {limit} s\n{self.text(0)}\n{self.text(1)}") from None
        return Finished(self.process.returncode, self.text(0), self.text(1), time.monotonic() - self.began)


class RunTest(unittest.TestCase):
    """A temporary folder with a model and a dataset for all tests of a class."""

    rows = 48
    config = llama_config()

    @classmethod
    def setUpClass(cls):
        assert os.access(BINARY, os.X_OK), "RANKTUNE_BINARY has to name the program"
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="ranktune-run-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        cls.model = make_model(cls.folder / "base-model", cls.config)
        cls.data = write_json(cls.folder / "rows.json", make_rows(cls.rows))
        cls.outputs = 0

    def new_output(self):
        type(self).outputs += 1
        return self.folder / f"run-{self.outputs}"

    def environment(self, **more):
        variables = {name: value for name, value in os.environ.items()
                     if not name.startswith(("SLURM", "OMPI_", "PMIX_", "HF_", "HUGGINGFACE"))}
        variables.update(OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", OMP_NUM_THREADS="1",
                         RANKTUNE_PYTHON=sys.executable,
                         RANKTUNE_CACHE=str(self.folder / "cache"), HF_HOME=str(self.folder / "huggingface"))
        variables.update(more)
        return variables

    def words(self, output, **flags):
        words = {"model_name": self.model, "dataset": self.data, "output_dir": output, "device": "cpu",
                 "max_seq_length": 256, "learning_rate": "5e-3", "r": 8, "lora_alpha": 16,
                 "per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
        words.update(flags)
        return ["train", *flags_of(words)]

    def start(self, ranks, output, environment=None, **flags):
        job = Job(ranks, self.words(output, **flags), environment or self.environment(), self.folder)
        self.addCleanup(job.close)
        return job

    def train(self, ranks, output, expect=0, **flags):
        done = self.start(ranks, output, **flags).finish()
        self.assertEqual(done.code, expect, done)
        return done

    def assert_same_bits(self, one, other):
        self.assertEqual(sorted(one), sorted(other))
        for name in one:
            self.assertEqual(one[name].shape, other[name].shape, name)
            self.assertEqual(one[name].tobytes(), other[name].tobytes(), f"{name} has other bits")

    def assert_same_rows(self, one, other):
        """Rows of /train/steps without the times."""
        names = ["step", "epoch", "samples", "tokens", "target_tokens", "loss", "learning_rate", "grad_norm"]
        self.assertEqual(one["step"].tolist(), other["step"].tolist())
        for name in names:
            self.assertEqual(one[name].tolist(), other[name].tolist(), name)
