"""Conversations from end to end: the model's chat template makes the texts, whatever the ranks and the form of the rows."""

import json
import unittest

import harness

TEMPLATE = ("{{ bos_token }}{% for m in messages %}{{ m.role }}:\n{{ m.content }}<|end|>\n{% endfor %}"
            "{% if add_generation_prompt %}assistant:\n{% endif %}")
DATED = "{{ strftime_now('%d %b %Y') }} " + TEMPLATE


def messages(row):
    return [{"role": "system", "content": "be kind"}, {"role": "user", "content": row["instruction"]},
            {"role": "assistant", "content": row["output"]}, {"role": "user", "content": "and then?"},
            {"role": "assistant", "content": "then " + row["output"]}]


class Chat(harness.RunTest):
    rows = 8

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        config = json.loads((cls.model / "tokenizer_config.json").read_text())
        harness.write_json(cls.model / "tokenizer_config.json", {**config, "bos_token": "<|pad|>", "chat_template": TEMPLATE})
        cls.alpaca = harness.make_rows(cls.rows)
        cls.chats = [messages(row) for row in cls.alpaca]
        cls.file("messages.jsonl", [{"messages": chat} for chat in cls.chats])

    @classmethod
    def file(cls, name, rows):
        (cls.folder / name).write_text("\n".join(map(json.dumps, rows)))
        return cls.folder / name

    def loss(self, dataset, ranks=2, **flags):
        """Loss and targets of the first step over all rows, in their order, and what was printed."""
        output = self.new_output()
        done = self.train(ranks, output, dataset=dataset, max_steps=1, gradient_accumulation_steps=8 // ranks,
                          shuffle=False, **flags)
        step = harness.steps(output)[0]
        return float(step["loss"]), int(step["target_tokens"]), done.output

    def refused(self, *parts, environment=None, **flags):
        done = self.start(2, self.new_output(), environment=environment,
                          **{"dataset": self.folder / "messages.jsonl", "max_steps": 1, **flags}).finish()
        self.assertEqual((done.code, len(done.sentences())), (2, 1), done)
        for part in parts:
            self.assertIn(part, done.sentences()[0])

    def text(self, chat, template_begin="<|pad|>"):
        return template_begin + "".join(f"{m['role']}:\n{m['content']}<|end|>\n" for m in chat)

    def test_messages_and_conversations(self):
        loss, targets, output = self.loss(self.folder / "messages.jsonl")
        self.assertIn("8 samples (messages)", output)
        self.assertEqual(self.loss(self.folder / "messages.jsonl", ranks=1)[1], targets)
        names = {"user": "human", "assistant": "gpt"}
        shared = self.file("sharegpt.jsonl", [{"system": chat[0]["content"], "conversations": [
            {"from": names[m["role"]], "value": m["content"]} for m in chat[1:]]} for chat in self.chats])
        again = self.loss(shared)
        self.assertEqual(again[:2], (loss, targets))
        self.assertIn("8 samples (conversations)", again[2])
        # The same texts, whose end of text is put behind them by the program.
        texts = self.file("texts.jsonl", [{"text": self.text(chat).removesuffix("<|end|>\n")} for chat in self.chats])
        fewer = self.loss(texts)
        self.assertEqual(fewer[1], targets - 8)  # the last line break

    def test_responses_only(self):
        """All answers, each with its end, and nothing else: as prompts and completions have it, answer by answer."""
        targets = self.loss(self.folder / "messages.jsonl", train_on_responses_only=True)[1]
        pairs = [{"prompt": self.text(chat[:place]) + "assistant:\n", "completion": chat[place]["content"] + "<|end|>\n"}
                 for chat in self.chats for place in (2, 4)]
        with_end = self.loss(self.file("pairs.jsonl", pairs), train_on_responses_only=True, per_device_train_batch_size=2)[1]
        self.assertEqual(targets, with_end - len(pairs))

    def test_alpaca_rows_as_turns(self):
        chats = [[{"role": "user", "content": row["instruction"] + ("\n\n" + row["input"] if row["input"] else "")},
                  {"role": "assistant", "content": row["output"]}] for row in self.alpaca]
        expected = self.loss(self.file("turns.jsonl", [{"messages": chat} for chat in chats]))
        self.assertEqual(self.loss(self.data, prompt_template="chat")[:2], expected[:2])

    def test_samples_are_shown(self):
        output = self.new_output()
        done = self.train(2, output, dataset=self.folder / "messages.jsonl", train_on_responses_only=True, shuffle=False,
                          show_sample=2)
        self.assertFalse(output.exists())
        self.assertEqual(done.output.count("sample "), 2, done)
        self.assertIn(self.text(self.chats[1]), done.output)
        second = done.output[done.output.index("sample 2 of 8"):]
        rows = [line.split(maxsplit=3) for line in second.splitlines() if line.strip()[:1].isdigit()]
        marked = "".join(json.loads(row[3]) for row in rows if row[1] == "*")
        self.assertEqual(marked, "".join(self.chats[1][place]["content"] + "<|end|>\n" for place in (2, 4)))
        self.assertIn(f"{len(rows)} tokens, {sum(row[1] == '*' for row in rows)} of them targets", second)
        # In the order of the first epoch, and wherever a run is.
        trained = self.new_output()
        self.train(2, trained, dataset=self.folder / "messages.jsonl", max_steps=1, gradient_accumulation_steps=1)
        flags = {"dataset": self.folder / "messages.jsonl", "gradient_accumulation_steps": 1, "show_sample": 2}
        shown = self.train(1, trained, **flags).output
        counts = [int(line.split(": ")[1].split()[0]) for line in shown.splitlines() if line.startswith("sample ")]
        self.assertEqual(sum(counts), int(harness.steps(trained)[0]["tokens"]))
        self.refused("--show_sample", show_sample=0)

    def test_cached_and_with_another_template(self):
        first = self.loss(self.folder / "messages.jsonl", dataset_limit=7)
        output = self.new_output()
        flags = {"dataset": self.folder / "messages.jsonl", "dataset_limit": 7, "max_steps": 1, "shuffle": False,
                 "gradient_accumulation_steps": 4}
        done = self.start(2, output, environment=self.environment(RANKTUNE_PYTHON="/no/python"), **flags).finish()
        self.assertEqual(done.code, 0, done)
        self.assertIn("from the cache", done.output)
        self.assertEqual(float(harness.steps(output)[0]["loss"]), first[0])
        (self.folder / "dated.jinja").write_text(DATED)
        dated = [self.loss(self.folder / "messages.jsonl", chat_template=self.folder / "dated.jinja", chat_date=day)
                 for day in ("2024-07-26", "2024-07-27", "2024-07-26")]
        self.assertEqual(dated[0][:2], dated[2][:2])
        self.assertNotEqual(dated[0][0], dated[1][0])

    def test_refusals(self):
        (self.folder / "dated.jinja").write_text(DATED)
        self.refused("--chat_date", chat_template=self.folder / "dated.jinja")
        (self.folder / "strict.jinja").write_text("{{ raise_exception('no system, please') }}")
        self.refused("dataset row 1", "no system, please", chat_template=self.folder / "strict.jinja")
        self.refused(str(self.folder / "nowhere.jinja"), chat_template=self.folder / "nowhere.jinja")
        self.refused("--prompt_template alpaca", "messages", prompt_template="alpaca")
        self.refused("--chat_template", "--prompt_template chat", dataset=self.data, chat_template=self.folder / "strict.jinja")
        self.refused("Python", "RANKTUNE_PYTHON", "/no/python", dataset_limit=6,
                     environment=self.environment(RANKTUNE_PYTHON="/no/python"))
        (self.folder / "jinja2.py").write_text("raise ImportError")
        self.refused("Jinja2", "RANKTUNE_PYTHON", dataset_limit=6,
                     environment=self.environment(PYTHONPATH=str(self.folder)))
        plain = harness.make_model(self.folder / "plain-model", self.config)
        self.refused("no chat template", "--chat_template FILE", model_name=plain)


if __name__ == "__main__":
    unittest.main()
