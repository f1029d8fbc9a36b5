"""Writes conversations as a chat template does, with Jinja2 set up as Transformers sets it up.

Compiled into the program, which runs it as `python3 -c`. Standard input: one JSON object {"template", "variables",
"date", "spans"}, then one JSON array of messages a line. Standard output: for each of them one line, a JSON object with
"text" and, if asked for, "spans": [begin, end) in UTF-8 bytes of what the assistant says. Exit code 3: standard error
has a sentence for the user.
"""
import sys

sys.path = [folder for folder in sys.path if folder]  # not the working directory

import datetime
import json
import os
import re


class Refused(Exception):
    pass


try:
    import jinja2
    import jinja2.ext
    import jinja2.sandbox
except ImportError:
    jinja2 = None


def check_jinja():
    if jinja2 is None:
        raise Refused(f"chat templates are rendered with Jinja2, which {sys.executable} does not have; install it (pip "
                      "install jinja2) or name a Python that has it in RANKTUNE_PYTHON")
    if tuple(map(int, jinja2.__version__.split(".")[:2])) < (3, 1):
        raise Refused(f"chat templates need Jinja2 3.1 or newer, and {sys.executable} has {jinja2.__version__}; update it "
                      "(pip install -U jinja2) or name another Python in RANKTUNE_PYTHON")


def make_template(source, date):
    """The template, and the list to which each rendering adds [begin, end) of its {% generation %} blocks."""
    blocks, generations = [], []

    class Generation(jinja2.ext.Extension):
        tags = {"generation"}

        def parse(self, parser):
            line = next(parser.stream).lineno
            body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
            return jinja2.nodes.CallBlock(self.call_method("_note"), [], [], body).set_lineno(line)

        def _note(self, caller):
            text = caller()
            begin = sum(map(len, blocks))
            generations.append((begin, begin + len(text)))
            return text

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def strftime_now(form):
        if not date:
            raise Refused("the chat template writes the date of the day into every text, so that the same command would "
                          "train on other texts tomorrow; say which date it is to be, as in --chat_date "
                          f"{datetime.date.today().isoformat()}")
        return datetime.datetime.strptime(date, "%Y-%m-%d").strftime(form)

    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = strftime_now
    try:
        template = environment.from_string(source)
    except jinja2.exceptions.TemplateSyntaxError as error:
        raise Refused(f"the chat template is not valid Jinja2: {error.message} (its line {error.lineno})") from None

    def render(messages, prompt, variables):
        blocks.clear()
        generations.clear()
        for block in template.generate(messages=messages, tools=None, documents=None, add_generation_prompt=prompt,
                                       **variables):
            blocks.append(block)
        return "".join(blocks)

    return render, generations


class Chat:
    def __init__(self, head):
        self.variables = head["variables"]
        self.render_with, self.generations = make_template(head["template"], head["date"])
        self.has_generations = re.search(r"\{%-?\s*generation\s*-?%\}", head["template"]) is not None

    def render(self, messages, prompt=False):
        return self.render_with(messages, prompt, self.variables)

    def attempt(self, messages, prompt=False):
        """As render, but None where the template does not take such a conversation."""
        try:
            return self.render(messages, prompt)
        except Refused:
            raise
        except Exception:
            return None

    def turn(self, messages, index, text):
        """[begin, end) in `text` of what the assistant says in a message, or None where that cannot be told."""
        before, after = messages[:index], messages[index + 1:]
        prompt = self.attempt(before, prompt=True)
        has_prompt = prompt is not None and text.startswith(prompt)
        until = self.attempt(messages[:index + 1]) if after else text
        if has_prompt and until is not None and text.startswith(until) and len(prompt) <= len(until):
            return len(prompt), len(until)
        # The template writes this turn in another way when it is not the last one. Its text is then what is gone
        # when the message is left out, if all the rest stays as it is.
        start = self.attempt(before) if before else ""
        without = self.attempt(before + after)
        if start is None or without is None or not text.startswith(start):
            return None
        end = len(start) + len(text) - len(without)
        if end <= len(start) or start + text[end:] != without:
            return None
        if has_prompt and len(start) <= len(prompt) <= end:
            return len(prompt), end
        # Nor is the turn opened as a prompt is: it begins where other answers would change the text.
        others = [self.attempt(before + [{**messages[index], "content": answer}] + after) for answer in "ab"]
        if None in others:
            return None
        begin = len(os.path.commonprefix([text, *others]))
        return (begin, end) if len(start) <= begin <= end else None

    def spans(self, messages, text):
        if self.has_generations:
            self.render(messages)
            return list(self.generations)
        found = []
        for index, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            span = self.turn(messages, index, text)
            if span is None:
                raise Refused(f"where the answer of message {index + 1} begins and ends in the chat template's text cannot "
                              "be told; leave --train_on_responses_only out, or give --chat_template a template with "
                              "{% generation %} blocks")
            found.append(span)
        return found


def answer(chat, messages, wants_spans):
    try:
        text = chat.render(messages)
        if not wants_spans:
            return {"text": text}
        size = [len(text[:place].encode()) for span in chat.spans(messages, text) for place in span]
        return {"text": text, "spans": list(zip(size[::2], size[1::2]))}
    except jinja2.exceptions.TemplateError as error:
        raise Refused(f"the chat template refuses it: {error}") from None
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError) as error:
        raise Refused(f"the chat template fails: {type(error).__name__}: {error}") from None


def main():
    check_jinja()
    head = json.loads(sys.stdin.buffer.readline())
    chat = Chat(head)
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            result = answer(chat, json.loads(line), head["spans"])
        except Refused as error:
            raise Refused(f"dataset row {number}: {error}") from None
        sys.stdout.buffer.write(json.dumps(result, ensure_ascii=False).encode() + b"\n")
    sys.stdout.buffer.flush()


try:
    main()
except Refused as problem:
    sys.stdout.buffer.flush()
    sys.stderr.buffer.write(" ".join(str(problem).split()).encode())
    sys.exit(3)
