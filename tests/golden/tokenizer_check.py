"""Compares the C++ tokenizer, through the program tokenize_lines, with Hugging Face's.

  golden   stored ids of edge strings and prompts, and a hash over the ids of 5,000 prompts
  live     random Unicode strings against the package `tokenizers`, for the real tokenizers
  parts    the same for small made-up tokenizers that use each normalizer, pre-tokenizer, added-token flag, ...

Exit code 77 means that the trial data or the package is not there.
"""
import argparse
import copy
import hashlib
import json
import random
import subprocess
import sys
import tempfile
import unicodedata
from pathlib import Path

SKIPPED = 77
FOLDERS = ["tokenizers/llama3.1", "tokenizers/qwen3", "tokenizers/smollm", "tokenizers/tinyllama", "models/stories260K"]


def run_tool(tool, folder, texts, *options):
    lines = "".join(json.dumps(t) + "\n" for t in texts)
    done = subprocess.run([tool, folder, *options], input=lines.encode(), stdout=subprocess.PIPE, check=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def alpaca_prompt(row):
    if row.get("input"):
        return ("Below is an instruction that describes a task, paired with an input that provides further context. "
                "Write a response that appropriately completes the request.\n\n### Instruction:\n"
                f"{row['instruction']}\n\n### Input:\n{row['input']}\n\n### Response:\n{row['output']}")
    return ("Below is an instruction that describes a task. Write a response that appropriately completes the "
            f"request.\n\n### Instruction:\n{row['instruction']}\n\n### Response:\n{row['output']}")


def check_golden(tool, data, failures):
    rows = json.loads((data / "alpaca/alpaca_cleaned_5000.json").read_text())
    prompts = [alpaca_prompt(row) for row in rows]
    for folder in FOLDERS:
        name = folder.split("/")[1]
        golden = json.loads((data / f"golden/{name}.json").read_text())
        found = run_tool(tool, data / folder, [case["text"] for case in golden["edge"]])
        for case, ours in zip(golden["edge"], found, strict=True):
            for key in ("ids", "ids_special", "decoded"):
                if ours[key] != case[key]:
                    failures.append(f"{name}: {key} of {case['text']!r}: {ours[key]} instead of {case[key]}")
        ids = run_tool(tool, data / folder, prompts, "--ids")
        for case in golden["alpaca_prompt"]:
            if ids[case["row"]] != case["ids"]:
                failures.append(f"{name}: ids of prompt {case['row']}")
        digest = hashlib.sha256()
        for row in ids:
            digest.update(b"".join(i.to_bytes(4, "little") for i in row))
        if digest.hexdigest() != golden["alpaca5000"]["sha256_of_all_ids_uint32le"]:
            failures.append(f"{name}: hash over the ids of {len(ids)} prompts")
        print(f"{name}: {len(found)} edge strings, {len(ids)} prompts, {sum(map(len, ids))} ids")


POOLS = [
    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ", "0123456789", " ", "   ", "\n", "\t", "\r\n", "\r",
    ".,;:!?'\"()[]{}<>|/\\-_=+*&^%$#@~`", "éèêëàâäôöùûüßñçøåæœÿ", "абвгдежзийклмнопрстуфхцчшщъыьэюя", "αβγδεζηθικλμνξοπρςστυφχψω",
    "的一是不了人我在有他这为之大来以个中上们", "あいうえおかきくけこさしすせそアイウエオガギグゲゴｱｲｳﾞ", "가나다라마바사아자차카타파하각난닫",
    "שלוםעולםאבגדה", "مرحبابالعالم١٢٣", "नमस्तेदुनिया०१२", "สวัสดีชาวโลก๑๒๓", "தமிழ்", "\u0301\u0308\u0323\u0327\u0345\u05b0\u064e\u093c\u3099",
    "😀😁🤣👍🏽🇩🇪🇫🇷❤️", "👨\u200d👩\u200d👧\u200d👦", "🏳️\u200d🌈", "\u00a0\u1680\u2000\u2003\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff\x85\x0b\x0c",
    "\x00\x01\x02\x07\x08\x1b\x1f\x7f\x80\x9f\xad", "²³¹¼½¾①②Ⅷⅷ㈠㊀𝟘𝟙௧", "ﬁﬂﬀﬃﬆ㎏㍿ＡＢＣａｂｃ１２３", "İıŉſKÅΩ\u1e9e", "ǅǈǲ",
    "𐐀𐐨𝔘𝕏𠀀𠮷𪜶\U00031350\U0002ebf0\U0001e030\U00011f02", "\U0010ffff\ufffd\ufffe\ue000\U000e0001", "'s't're've'm'll'd'S'T'RE'VE'M'LL'D'ſ",
    "’s‘t“”–—…•", "▁▁▁", "Ġ Ċ ĉ Ã", "<0x0A><0xE2><0x", "<|<|>|>",
]
PHRASES = ["hello world", " the quick brown fox", "### Instruction:\n", "def f(x):\n    return x\n", "https://example.com/a?b=c&d=1",
           "1234567890", "3.14159", "I'm you're they've we'll he'd", "aaaaaaaaaaaaaaaaaaaaaaaa", "================"]


def random_string(rng, tokens):
    text = ""
    for _ in range(rng.randint(0, 12)):
        kind = rng.random()
        if kind < 0.55:
            pool = rng.choice(POOLS)
            text += "".join(rng.choice(pool) for _ in range(rng.randint(1, 8)))
        elif kind < 0.65:
            text += rng.choice(PHRASES)
        elif kind < 0.75 and tokens:
            token = rng.choice(tokens)
            text += token if rng.random() < 0.7 else token[: rng.randint(0, len(token))]
            text += rng.choice(["", "", " ", "  ", "x", "\n"])
        elif kind < 0.80:
            text += rng.choice(rng.choice(POOLS)) * rng.randint(1, 300)
        elif kind < 0.90:
            text += rng.choice(POOLS)
        else:
            for _ in range(rng.randint(1, 6)):
                plane = rng.choice([0x250, 0x3000, 0x10000, 0x20000, 0x110000])
                c = rng.randrange(plane)
                text += chr(c) if not 0xD800 <= c < 0xE000 else "\ufffd"
    return text


def compare(name, tool, folder, texts, failures):
    from tokenizers import Tokenizer

    reference = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    ours = run_tool(tool, folder, texts)
    wrong = 0
    for text, found in zip(texts, ours, strict=True):
        expected = {"ids": reference.encode(text, add_special_tokens=False).ids,
                    "ids_special": reference.encode(text, add_special_tokens=True).ids}
        expected["decoded"] = reference.decode(expected["ids"], skip_special_tokens=False)
        expected["decoded_plain"] = reference.decode(expected["ids_special"], skip_special_tokens=True)
        for key, value in expected.items():
            if found[key] != value:
                wrong += 1
                if wrong <= 3:
                    failures.append(f"{name}: {key} of {text!r}:\n  ours   {found[key]!r}\n  theirs {value!r}")
    print(f"{name}: {len(texts)} strings, {wrong} differences")


def check_live(tool, data, count, seed, failures):
    for folder in FOLDERS:
        listed = json.loads((data / folder / "tokenizer.json").read_text())["added_tokens"]
        rng = random.Random(f"{seed} {folder}")
        texts = [random_string(rng, [t["content"] for t in listed]) for _ in range(count)]
        compare(folder.split("/")[1], tool, data / folder, texts, failures)


def byte_characters():
    """GPT-2's printable stand-ins for the 256 bytes."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    return [*map(chr, kept), *(chr(256 + i) for i in range(256 - len(kept)))]


def token(content, number, **flags):
    return {"id": number, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
            "normalized": False, "special": False, **flags}


def made_up(rng, characters, merges=300):
    """A model whose merges come from random joining, so that every rule of precedence is met."""
    vocabulary = {c: i for i, c in enumerate(dict.fromkeys(characters))}
    pieces, found = list(vocabulary), []
    while len(found) < merges:
        left, right = rng.choice(pieces), rng.choice(pieces)
        if [left, right] in found or len(left + right) > 12:
            continue
        vocabulary.setdefault(left + right, len(vocabulary))
        pieces.append(left + right)
        found.append([left, right])
    return {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": vocabulary, "merges": found}


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}


def sequence(kind, *parts):
    return {"type": "Sequence", kind: list(parts)}


def tokenizer_variants(rng):
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": made_up(rng, "abcdeABC 0123.,'▁éßſ的ı\n\u0301")}

    def variant(name, **changes):
        made = copy.deepcopy(base)
        model = changes.pop("model", {})
        made.update(changes)
        made["model"].update(model)
        return name, made

    metaspace = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": True}
    level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    byte_model = made_up(rng, byte_characters(), 600)
    yield variant("plain")
    for form in ("NFC", "NFD", "NFKC", "NFKD", "Lowercase"):
        yield variant(form, normalizer={"type": form}, model={"unk_token": "a"})
        yield variant(f"bytes of {form}", model=byte_model, decoder=level, normalizer=sequence(
            "normalizers", {"type": form}, {"type": "ByteLevel"}))
    yield variant("normalizers", normalizer=sequence(
        "normalizers", {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"},
        {"type": "Replace", "pattern": {"Regex": r"\s+|b(?=c)"}, "content": "▁"},
        {"type": "Replace", "pattern": {"String": "a"}, "content": ""}, {"type": "Prepend", "prepend": "bc"}))
    for behavior in ("Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"):
        for invert in (False, True):
            yield variant(f"split {behavior} {invert}", pre_tokenizer=sequence(
                "pretokenizers", split({"Regex": r"\s|[ab]+?|(?i:'s)"}, behavior, invert),
                split({"String": "c"}, behavior, invert)))
    for number, pattern in enumerate([
            r"\w+|\W", r"\p{N}{1,3}+|[^\S\n]+|$", r"x*", r"(?i:c|d)|\h", r"[\S]+", r"\bb|\Be",
            r"a{,2}|\v|\u0301", r"\p{Lu}|\p{^L}|\P{M}", r"[^\W\d]+", r"\w|[\d\w]x|[^\W]b", r"(?i)a|b", r"(?<=a|b)c|\p{Han}+|\p{C}", "^.|.$"]):
        yield variant(f"pattern {number} {pattern}", pre_tokenizer=split({"Regex": pattern}), model={"unk_token": "b"})
    for scheme in ("first", "always", "never"):
        for splits in (True, False):
            yield variant(f"Metaspace {scheme} {splits}", decoder={**metaspace, "prepend_scheme": scheme},
                          pre_tokenizer={**metaspace, "prepend_scheme": scheme, "split": splits},
                          added_tokens=[token("<s>", len(base["model"]["vocab"]), special=True)])
    yield variant("Strip before Metaspace", pre_tokenizer={**metaspace, "split": False},
                  normalizer={"type": "Strip", "strip_left": True, "strip_right": False})
    yield variant("Replace before Metaspace", pre_tokenizer={**metaspace, "split": False},
                  normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": "bc"})
    yield variant("Replace away before Metaspace", pre_tokenizer={**metaspace, "split": False},
                  normalizer={"type": "Replace", "pattern": {"String": "a"}, "content": ""})
    yield variant("NFKC before Metaspace", pre_tokenizer={**metaspace, "split": False}, normalizer={"type": "NFKC"})
    yield variant("Digits before Metaspace", pre_tokenizer=sequence(
        "pretokenizers", {"type": "Digits", "individual_digits": False}, metaspace))
    for individual in (True, False):
        yield variant(f"Digits {individual}", model={"unk_token": "c", "fuse_unk": True},
                      pre_tokenizer={"type": "Digits", "individual_digits": individual})
    for prefix_space in (True, False):
        for regex in (True, False):
            for ignore in (True, False):
                yield variant(f"ByteLevel {prefix_space} {regex} {ignore}", decoder=level,
                              model={**byte_model, "ignore_merges": ignore},
                              pre_tokenizer={**level, "add_prefix_space": prefix_space, "use_regex": regex})
    yield variant("ByteLevel in the middle", decoder=level, model=byte_model, pre_tokenizer=sequence(
        "pretokenizers", level, split({"Regex": "Ġ|[ÃĊ]"}, "MergedWithNext"), {"type": "Digits", "individual_digits": True}))
    yield variant("ByteLevel twice", model=byte_model, pre_tokenizer=sequence("pretokenizers", level, level))
    yield variant("ByteLevel with bytes missing", pre_tokenizer=level, model={"unk_token": "d"})
    yield variant("ByteLevel normalizer", model=byte_model, normalizer={"type": "ByteLevel"}, decoder=level)
    for fuse in (True, False):
        for unknown in ("d", None):
            fallback = {f"<0x{b:02X}>": 5000 + b for b in range(0x20, 0xD0)}
            yield variant(f"byte_fallback {fuse} {unknown}", decoder=sequence(
                "decoders", {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}),
                model={"byte_fallback": True, "fuse_unk": fuse, "unk_token": unknown,
                       "vocab": base["model"]["vocab"] | fallback})
    yield variant("strings as merges", model={"merges": ["#version: 0.2"] + [
        " ".join(m) for m in base["model"]["merges"] if " " not in m[0] + m[1]]})
    yield variant("the same merge twice", model={"merges": base["model"]["merges"] + base["model"]["merges"][:50]})
    size = len(base["model"]["vocab"])
    flags = [token("<a>", size), token("<b>", size + 1, lstrip=True), token("<c>", size + 2, rstrip=True),
             token("<d>", size + 3, lstrip=True, rstrip=True, special=True), token("ab", base["model"]["vocab"].get("ab", size + 4), single_word=True),
             token("  ", size + 5 - ("ab" in base["model"]["vocab"]), normalized=True)]
    flags += [token("<a><b>", flags[-1]["id"] + 1), token("BC", flags[-1]["id"] + 2, normalized=True, single_word=True)]
    yield variant("added tokens", added_tokens=flags)
    yield variant("added tokens, lower case", added_tokens=flags, normalizer={"type": "Lowercase"})
    yield variant("template", added_tokens=flags, post_processor=sequence(
        "processors", level, {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<a>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
            {"SpecialToken": {"id": "<b>", "type_id": 0}}], "pair": [
            {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
            "special_tokens": {"<a>": {"id": "<a>", "ids": [1, 2], "tokens": ["x", "y"]},
                               "<b>": {"id": "<b>", "ids": [3], "tokens": ["z"]}}}))
    affixed = {"a": 0, "##b": 1, "a##b": 2, "ab": 3, "c</w>": 4, "##c</w>": 5, "abc</w>": 6, "##a": 7, "b": 8, "##b</w>": 9,
               "d": 10, "a</w>": 11}
    yield variant("prefix and suffix", pre_tokenizer=split({"String": " "}, "Removed"), model={
        "vocab": affixed, "merges": [["a", "##b"], ["ab", "##c</w>"]], "continuing_subword_prefix": "##",
        "end_of_word_suffix": "</w>", "unk_token": "d"})


def check_parts(tool, count, seed, failures):
    rng = random.Random(f"{seed} parts")
    pools = ["".join(c for c in map(chr, range(0x300, 0x30000)) if unicodedata.combining(c)),
             "".join(c for c in map(chr, range(0xA0, 0x30000)) if unicodedata.decomposition(c)), "abcdeABC", "0123٣²", "  ", ".,'", "▁", "éßſ的ı", "\n\r\v\t", "\u0301\u0323e", "ﬁÅ①", "\u00a0\u180e\u3000", "😀\U00031350"]
    words = ["<a>", "<b>", "<c>", "<d>", "<s>", "ab", "  ", "<a><b>", "BC", "bc", "'s", "'S", "aab", "c d", "BaBc"]
    for name, made in tokenizer_variants(rng):
        texts = [""] + ["".join(rng.choice(words) if rng.random() < 0.3 else rng.choice(rng.choice(pools))
                                for _ in range(rng.choice([1, 2, 5, 20, 100]))) for _ in range(count)]
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "tokenizer.json").write_text(json.dumps(made))
            compare(name, tool, folder, texts, failures)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["golden", "live", "parts"])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--count", type=int, default=20000)
    parser.add_argument("--seed", default="1")
    options = parser.parse_args()
    if options.what != "parts" and not (options.data and options.data.is_dir()):
        print(f"skipped: no trial data at {options.data}")
        return SKIPPED
    if options.what != "golden":
        try:
            import tokenizers  # noqa: F401
        except ImportError:
            print("skipped: the package tokenizers is not installed")
            return SKIPPED
    failures = []
    if options.what == "golden":
        check_golden(options.tool, options.data, failures)
    elif options.what == "live":
        check_live(options.tool, options.data, options.count, options.seed, failures)
    else:
        check_parts(options.tool, options.count, options.seed, failures)
    for failure in failures:
        print(failure, file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
