"""A chat template: Hugging Face's jinja2, with `messages`, `tools`, `add_generation_prompt`, the tokenizer's `bos_token`,
`eos_token` and others, and `raise_exception`. `strftime_now` is not there, so that the same conversations give the same
tokens on any day; templates that ask whether it is there render a fixed one.
"""

import json
import re
from functools import cached_property
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
# Code points that no text may use (U+FDD2 and U+FDD3 are spelt.py's).
OPEN, CLOSE = "\ufdd0", "\ufdd1"  # around what {% generation %} marks
WORDS = "\ufdd4"  # words that no conversation has, to see what a template makes of them


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
        self.source, self.name = source, name
        begin, end = tokenizer.begin_and_end()
        self.tokens = (tokenizer.named_tokens() or {}) | {"bos_token": begin, "eos_token": end}
        self.tokens = {name: token or "" for name, token in self.tokens.items()}
        try:
            self.template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise DataError(f"{name}: no chat template: {error}") from None

    def render(self, messages: list[dict], tools: list | None = None, prompt: bool = False) -> str:
        try:
            return self.template.render(messages=messages, tools=tools, add_generation_prompt=prompt, **self.tokens)
        except (
            jinja2.TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, RecursionError
        ) as error:
            raise DataError(
                f"the template {self.name} refuses the conversation: {error}\n"
                "  leave the conversation out, or give a template that takes it with --template FILE.jinja"
            ) from None

    def render_if_taken(self, messages: list[dict], tools: list | None = None, prompt: bool = False) -> str | None:
        try:
            return self.render(messages, tools, prompt)
        except DataError:
            return None

    @cached_property
    def generation_prompt(self) -> str:
        """What is put after a user's message for the model to go on from; nothing if the template adds nothing."""
        said = [{"role": "user", "content": WORDS}]
        before, prompt = self.render_if_taken(said), self.render_if_taken(said, prompt=True)
        return prompt[len(before) :] if before and prompt and prompt.startswith(before) else ""

    @cached_property
    def takes_parts(self) -> bool:
        """Whether it renders the text of a content in parts, and not the list that they stand in."""
        talk = [{"role": role, "content": [{"type": "text", "text": WORDS}]} for role in ("user", "assistant")]
        text = self.render_if_taken(talk) or ""
        return text.count(WORDS) == 2 and not re.search(rf"text['\"]: ?['\"]{WORDS}", text)


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


def has_template(tokenizer) -> bool:
    """Whether the folder of the tokenizer has a template (one of bytes has no file)."""
    return tokenizer.path is not None and (
        tokenizer.path.with_name(TEMPLATE_FILE).is_file() or bool(tokenizer.config(CONFIG_FILE).get("chat_template"))
    )


def find_template(path: Path | None, tokenizer: Tokenizer) -> tuple[str, str]:
    """The template's text and name: the file given, else the one in the folder of the tokenizer, else Llama 3's."""
    given, path = path is not None, path or tokenizer.path.with_name(TEMPLATE_FILE)
    if path.is_file():
        return (path if given else own_file(path)).read_text(encoding="utf-8"), path.name
    if given:
        raise DataError(f"there is no template {path}")
    template = tokenizer.config(CONFIG_FILE).get("chat_template")
    if isinstance(template, list):  # several, by name
        names = [entry["name"] for entry in template]
        if "default" not in names:
            raise DataError(
                f"{tokenizer.path.with_name(CONFIG_FILE)}: none of its chat templates is called default:"
                f" {', '.join(names)}\n  put one of them into {TEMPLATE_FILE} next to it"
            )
        template = template[names.index("default")]["template"]
    if template:
        return template, f"of {CONFIG_FILE}"
    missing = [
        name
        for name in ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
        if tokenizer.tokenizer.token_to_id(name) is None
    ]
    if missing:
        raise DataError(
            f"the folder of {tokenizer.path} has no chat template, and it has no {', '.join(missing)}, as Llama 3's needs\n"
            "  give one with --template FILE.jinja"
        )
    return LLAMA3, "of Llama 3, built in"
