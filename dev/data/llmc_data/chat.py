"""Conversations → text by a chat template, and which of it is learnt: what the assistant says, to its end of turn.

Templates are Hugging Face's: jinja2, with `messages`, `tools`, `add_generation_prompt`, `bos_token`, `eos_token` and
`raise_exception`. `strftime_now` is not there, so that the same conversations give the same tokens on any day.

What is learnt of message i begins where the template's generation prompt after messages 0 to i-1 ends, and ends where
the rendering of messages 0 to i does. Both must be beginnings of the whole rendering. A template that renders a message
differently when more follow marks what is learnt itself, with {% generation %} … {% endgeneration %}.

A message with "weight": 0 is not learnt. What would be lost in silence is refused: tools and calls that the template does
not render, and a conversation whose answers have a role that is not learnt.
"""

import json
import re
from pathlib import Path

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llmc_data.errors import DataError
from llmc_data.links import own_file
from llmc_data.tokenizer import CONFIG_FILE, TEMPLATE_FILE, Tokenizer

LLAMA3 = (
    "{% if tools %}{{ raise_exception('it has tools, and this template renders text alone') }}{% endif %}"
    "{% for message in messages %}"
    "{% if message['tool_calls'] or message['content'] is not string %}"
    "{{ raise_exception('message ' ~ loop.index0 ~ ' has ' ~ ('tool_calls' if message['tool_calls'] else 'no string'"
    " ~ ' as its content') ~ ', and this template renders text alone') }}"
    "{% endif %}{% if loop.first %}{{ bos_token }}{% endif %}"
    "{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}"
)
TAG = re.compile(r"\{%([-+]?)\s*((?:end)?generation)\s*([-+]?)%\}")
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # around what {% generation %} marks: code points that no text may use
ANSWERS = "assistant"  # the role whose messages are learnt
OTHER_ROLES = ("system", "developer", "user", "tool", "function", "ipython")  # which a conversation without it may have
CALLS = ("tool_calls", "function_call")

Spans = list[tuple[int, int]]


class GenerationTag(Extension):
    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("marked"), [], [], body).set_lineno(line)

    def marked(self, caller) -> str:
        return OPEN + caller() + CLOSE


def raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    def __init__(self, source: str, name: str, tokenizer: Tokenizer):
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, "jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = to_json
        environment.globals["raise_exception"] = raise_exception
        self.source, self.name, self.tokenizer = source, name, tokenizer
        begin, end = tokenizer.begin_and_end()
        self.tokens = {"bos_token": begin or "", "eos_token": end or ""}
        try:
            self.template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise DataError(f"{name}: no chat template: {error}") from None

    def render(self, messages: list[dict], tools: list | None, prompt: bool = False) -> str:
        try:
            return self.template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **self.tokens)
        except (jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError) as error:
            raise DataError(
                f"the template {self.name} refuses the conversation: {error}\n"
                "  leave the conversation out, or give a template that takes it with --template FILE.jinja"
            ) from None

    def learnt(self, messages: list[dict], tools: list | None = None) -> tuple[str, Spans, bool]:
        """The rendered conversation, the learnt stretches of it in characters, and whether the template marked them."""
        text = self.render(messages, tools)
        learns = [weight_of(message, i) == 1 for i, message in enumerate(messages)]
        if OPEN in text:
            self.refuse_what_is_not_rendered(text, messages, tools)
            text, spans = unmark(text)
            return text, self.marked_and_learnt(spans, messages, learns), True
        strange = [message["role"] for message in messages if message["role"] not in OTHER_ROLES]
        if strange and ANSWERS not in strange:
            raise DataError(
                f"no message has the role {ANSWERS}, whose messages are learnt, and one has the role {strange[0]}\n"
                f"  rename it, or mark what is learnt in the template with {{% generation %}} … {{% endgeneration %}}"
            )
        spans = []
        for i, message in enumerate(messages):
            if message["role"] == ANSWERS and learns[i]:
                after = self.render(messages[: i + 1], tools)
                before = self.render(messages[:i], tools, prompt=True) if i else self.before_first(messages, tools)
                if not (text.startswith(after) and after.startswith(before)):
                    raise DataError(
                        f"the template {self.name} renders message {i} differently when more follow, or without its"
                        " generation prompt\n  mark what is learnt in it with {% generation %} … {% endgeneration %}"
                    )
                spans.append((len(before), len(after)))
        self.refuse_what_is_not_rendered(text, messages, tools)
        return text, spans, False

    def before_first(self, messages: list[dict], tools: list | None) -> str:
        """What stands before the words of an assistant that begins the conversation. Many templates render no empty
        conversation, so the generation prompt is what they add after this message, and it stands before it, too."""
        first = self.render(messages[:1], tools)
        prompt = self.render(messages[:1], tools, prompt=True).removeprefix(first)
        return first[: first.find(prompt) + len(prompt)] if prompt in first else prompt

    def refuse_what_is_not_rendered(self, text: str, messages: list[dict], tools: list | None) -> None:
        """A template that ignores tools, calls or what a message says renders the same text without them."""

        def same(messages: list[dict], tools: list | None) -> bool:
            try:
                return self.render(messages, tools) == text
            except DataError:
                return False  # the template asks for what was taken away

        lost = "its tools" if tools and same(messages, None) else None
        for i, message in enumerate(messages):
            said = message.get("content")
            seen = not isinstance(said, str) or said.strip() in text  # the usual case, which needs no rendering
            for key in [key for key in CALLS if message.get(key)] + ["content"] * (not seen):
                without = {name: value for name, value in message.items() if name != key}
                without |= {"content": ""} if key == "content" else {}
                if not lost and same([*messages[:i], without, *messages[i + 1 :]], tools):
                    lost = f"the {key} of message {i}, whose role is {message['role']}"
        if lost:
            raise DataError(
                f"the template {self.name} does not render {lost}\n"
                "  leave the conversation out, or give a template that renders it with --template FILE.jinja"
            )

    def marked_and_learnt(self, spans: Spans, messages: list[dict], learns: list[bool]) -> Spans:
        """What the template marked, without the messages of weight 0."""
        if not all(learns):
            learns = [learns[i] for i, message in enumerate(messages) if message["role"] == ANSWERS]
            if len(learns) != len(spans):
                raise DataError(
                    f"the template {self.name} marks {len(spans)} stretches, and {len(learns)} messages have the role"
                    f" {ANSWERS}: it is not known which stretch the weight 0 stands for\n  leave the weights out"
                )
            spans = [span for span, learnt in zip(spans, learns, strict=True) if learnt]
        return [(first, last) for first, last in spans if first < last]

    def tokens_and_mask(self, messages: list[dict], tools: list | None = None):
        """The tokens of the whole rendering, and for each whether it is learnt: it begins in a learnt stretch, and is no
        white space behind the special token that ends the turn (ChatML renders a newline there)."""
        text, spans, marked = self.learnt(messages, tools)
        ids, starts = self.tokenizer.encode_rendered(text)
        mask = bytearray(len(ids))
        for first, last in spans:
            inside = [t for t, start in enumerate(starts.tolist()) if first <= start < last]
            special = [n for n, t in enumerate(inside) if int(ids[t]) in self.tokenizer.special_ids]
            behind = inside[special[-1] + 1 :] if special and not marked else []
            if behind and text[starts[behind[0]] : last].isspace():
                del inside[-len(behind) :]
            for t in inside:
                mask[t] = 1
        return ids, bytes(mask)


def weight_of(message: dict, i: int) -> int:
    """1 if the message is learnt, as if its weight is missing; 0 if not."""
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise DataError(f"message {i} has the weight {weight!r}\n  expected 0 or 1: a token is learnt, or it is not")
    return int(weight)


def unmark(text: str) -> tuple[str, Spans]:
    """Takes the marks out of a text; where what stood between them is."""
    plain, spans, length = [], [], 0
    for n, part in enumerate(text.split(OPEN)):
        inside, _, outside = part.partition(CLOSE) if n else ("", "", part)
        spans += [(length, length + len(inside))] * (n > 0)
        length += len(inside) + len(outside)
        plain += [inside, outside]
    return "".join(plain), spans


def without_tags(source: str) -> str:
    """The template for those that do not know {% generation %}: a comment stands in its place, which renders as
    nothing and takes the same white space around it along."""
    return TAG.sub(r"{#\1 \2 \3#}", source)


def files_beside(source: str, tokenizer: Tokenizer) -> dict[str, bytes]:
    """What says to whoever talks with the model which template it was trained with."""
    source = without_tags(source)
    files = {TEMPLATE_FILE: source.encode()}
    config = tokenizer.config(CONFIG_FILE)
    if config.get("chat_template", source) != source:
        files[CONFIG_FILE] = json.dumps(config | {"chat_template": source}, indent=2, ensure_ascii=False).encode()
    return files


def find_template(path: Path | None, tokenizer: Tokenizer) -> tuple[str, str]:
    """The template's text and name: the file given, else what stands beside the tokenizer, else Llama 3's."""
    given, path = path is not None, path or tokenizer.path.with_name(TEMPLATE_FILE)
    if path.is_file():
        return (path if given else own_file(path)).read_text(encoding="utf-8"), path.name
    if given:
        raise DataError(f"there is no template {path}")
    template = tokenizer.config(CONFIG_FILE).get("chat_template")
    if isinstance(template, list):  # several, by name
        template = next((entry["template"] for entry in template if entry["name"] == "default"), None)
    if template:
        return template, f"of {CONFIG_FILE}"
    missing = [
        name
        for name in ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
        if tokenizer.tokenizer.token_to_id(name) is None
    ]
    if missing:
        raise DataError(
            f"no chat template stands beside {tokenizer.path}, and it has no {', '.join(missing)}, as Llama 3's needs\n"
            "  give one with --template FILE.jinja"
        )
    return LLAMA3, "of Llama 3, built in"
