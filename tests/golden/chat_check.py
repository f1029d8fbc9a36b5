"""Chat templates against Transformers, live: chat_check.py PROBE DATA, where DATA holds templates/ and tokenizers/.

The ids are those of apply_chat_template. What is trained on is told in two ways of our own: by the same conversation up
to each answer, where a template only ever appends, and by {% generation %} blocks, which Transformers marks itself.
Exit code 77: the trial data is not there.
"""
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import transformers.utils.chat_template_utils as chat_utils
from transformers import AutoTokenizer, PreTrainedTokenizerFast

PROBE, DATA = sys.argv[1], Path(sys.argv[2])
DAY = "2025-03-09"
CASES = {"llama3_2_hf_tokenizer_config": "llama3.1", "qwen2_5_hf_tokenizer_config": "qwen3",
         "qwen3_hf_tokenizer_config": "qwen3", "qwenlm_qwen3_nonthinking": "qwen3", "tinyllama_chat": "tinyllama"}
GENERATION = """{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant
{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}

{% else %}{{ '<|im_start|>' + m.role + '\n' + m.content }}<|im_end|>
{% endif %}{% endfor %}"""


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **more):
    return {"role": "assistant", "content": text, **more}


SYSTEM = {"role": "system", "content": "You are terse. \u00c4\u00f6\u00fc \U0001f600"}
CONVERSATIONS = [
    [user("What is 1 + 2?"), assistant("3")],
    [SYSTEM, user("What is 1 + 2?"), assistant("It is 3.\n")],
    [user(" Name a colour.\n"), assistant("  Red"), user("Another, \u4f60\u597d?"), assistant("blue  "), user("One more"),
     assistant("<green> & \"x\"")],
    [SYSTEM, user("a <|im_end|> b"), assistant("<think>\nhm\n</think>\n\nyes"), user("sure?"),
     assistant("<think>\nhm hm\n</think>\n\nvery")],
    [SYSTEM, user("a"), assistant("b"), user("no answer yet")],
    [user("a"), assistant("b", reasoning_content="because")],
]


class Chat(unittest.TestCase):
    def setUp(self):
        self.folder = Path(tempfile.mkdtemp(prefix="chat-check-"))
        self.addCleanup(shutil.rmtree, self.folder)

    def probe(self, model, rows, *words):
        path = self.folder / "rows.jsonl"
        path.write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))
        done = subprocess.run([PROBE, model, path, *words], capture_output=True, text=True,
                              env={**os.environ, "RANKTUNE_PYTHON": sys.executable})
        self.assertEqual(done.returncode, 0, done.stderr)
        return [json.loads(line) for line in done.stdout.splitlines()]

    def expected(self, tokenizer, conversation, **more):
        class Today(chat_utils.datetime):
            @classmethod
            def now(cls, zone=None):
                return cls.strptime(DAY, "%Y-%m-%d")

        chat_utils._compile_jinja_template.cache_clear()
        with mock.patch.object(chat_utils, "datetime", Today):
            return tokenizer.apply_chat_template(conversation, tokenize=True, return_dict=True, **more)

    def test_ids(self):
        for name, tokenizer_name in CASES.items():
            with self.subTest(name):
                template = DATA / "templates" / f"{name}.jinja"
                model = DATA / "tokenizers" / tokenizer_name
                # As tokenizer.json has it: the class LlamaTokenizer would put other blanks behind special tokens.
                tokenizer = PreTrainedTokenizerFast.from_pretrained(model)
                ours = self.probe(model, CONVERSATIONS, "--template", template, "--date", DAY)
                for conversation, row in zip(CONVERSATIONS, ours, strict=True):
                    theirs = self.expected(tokenizer, conversation, chat_template=template.read_text())["input_ids"]
                    self.assertEqual(row["ids"], theirs, conversation)
                if tokenizer.bos_token_id is not None:
                    self.assertTrue(all(row["ids"].count(tokenizer.bos_token_id) <= 1 for row in ours))

    def test_the_templates_of_a_folder(self):
        """One in the configuration, several of them, and the file that goes before both."""
        model = self.folder / "model"
        shutil.copytree(DATA / "tokenizers" / "smollm", model)
        (model / "tokenizer_config.json").chmod(0o644)
        model.chmod(0o755)
        config = json.loads((model / "tokenizer_config.json").read_text())
        forms = ["{{ bos_token }}{{ messages | tojson }}",
                 [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "{{ eos_token }}{{ messages[0].role }}"}]]
        for form in forms:
            config["chat_template"] = form
            (model / "tokenizer_config.json").write_text(json.dumps(config))
            self.compare_folder(model)
        (model / "chat_template.jinja").write_text("{% for m in messages %}{% if loop.index > 2 %}{% break %}{% endif %}\n"
                                                   "  {{- m.content }}{{ pad_token }}\r\n{% endfor %}\n\n")
        self.compare_folder(model)

    def compare_folder(self, model):
        tokenizer = AutoTokenizer.from_pretrained(model)
        for conversation, row in zip(CONVERSATIONS, self.probe(model, CONVERSATIONS), strict=True):
            self.assertEqual(row["ids"], self.expected(tokenizer, conversation)["input_ids"])

    def trained_texts(self, tokenizer, row):
        """The text of each run of tokens that are trained on."""
        runs = [[]]
        for token, mark in zip(row["ids"], row["trained"], strict=True):
            if mark:
                runs[-1].append(token)
            elif runs[-1]:
                runs.append([])
        return [tokenizer.decode(run) for run in runs if run]

    def test_what_is_trained_on(self):
        ends = {"llama3.1": "<|eot_id|>", "qwen3": "<|im_end|>\n", "tinyllama": "</s> \n"}
        for name, tokenizer_name in CASES.items():
            with self.subTest(name):
                template = DATA / "templates" / f"{name}.jinja"
                model = DATA / "tokenizers" / tokenizer_name
                tokenizer = AutoTokenizer.from_pretrained(model)
                ours = self.probe(model, CONVERSATIONS[:5], "--template", template, "--date", DAY, "--responses")
                plain = self.probe(model, CONVERSATIONS[:5], "--template", template, "--date", DAY)
                self.assertEqual([row["ids"] for row in ours], [row["ids"] for row in plain])
                for conversation, row in zip(CONVERSATIONS, ours):
                    found = self.trained_texts(tokenizer, row)
                    said = [m["content"] for m in conversation if m["role"] == "assistant"]
                    self.assertEqual(len(found), len(said), found)
                    for text, content in zip(found, said):
                        self.assertTrue(text.endswith(ends[tokenizer_name]), text)
                        self.assertIn(content.split("</think>")[-1].strip(), text)
                        self.assertNotIn("assistant", text)
                        self.assertNotIn("user", text)
        # Qwen3 takes the thinking out of all answers but the last, which the model has to write whole.
        template = DATA / "templates" / "qwen3_hf_tokenizer_config.jinja"
        row = self.probe(model := DATA / "tokenizers" / "qwen3", CONVERSATIONS[3:4], "--template", template, "--responses")[0]
        self.assertEqual(self.trained_texts(AutoTokenizer.from_pretrained(model), row),
                         ["yes<|im_end|>\n", "<think>\nhm hm\n</think>\n\nvery<|im_end|>\n"])

    def test_generation_blocks(self):
        model = DATA / "tokenizers" / "qwen3"
        tokenizer = AutoTokenizer.from_pretrained(model)
        (self.folder / "generation.jinja").write_text(GENERATION)
        ours = self.probe(model, CONVERSATIONS, "--template", self.folder / "generation.jinja", "--responses")
        for conversation, row in zip(CONVERSATIONS, ours, strict=True):
            theirs = self.expected(tokenizer, conversation, chat_template=GENERATION, return_assistant_tokens_mask=True)
            self.assertEqual(row["ids"], theirs["input_ids"])
            self.assertEqual(row["trained"], theirs["assistant_masks"])
            self.assertIn(1, row["trained"])


if __name__ == "__main__":
    if not (DATA / "templates").is_dir():
        sys.exit(77)
    unittest.main(argv=sys.argv[:1])
