"""Writes expected.json: what jinja2 makes of the templates here, set up as Hugging Face's tools set it up. The test
test_chat_prompt compares the program's renderings with it.

    python dev/test/chat_templates/make.py [--check]      --check: only say whether expected.json is as it would be
"""

import json
import sys
from pathlib import Path

import jinja2
from jinja2.ext import Extension
from jinja2.sandbox import ImmutableSandboxedEnvironment

HERE = Path(__file__).parent
USER, ASSISTANT, SYSTEM = "user", "assistant", "system"


class Generation(Extension):
    """{% generation %} … {% endgeneration %}, which changes nothing of the text."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("text"), [], [], body).set_lineno(line)

    def text(self, caller):
        return caller()


def say(role: str, content, **more) -> dict:
    return {"role": role, "content": content, **more}


CALL = {"function": {"name": "add", "arguments": {"a": 1, "b": [2.5, None, True], "c": "ü\"<"}}}
CONVERSATIONS = {
    "one": [say(USER, "  Who are you?\n")],
    "system": [say(SYSTEM, "Be brief."), say(USER, "Hi"), say(ASSISTANT, " Hello. "), say(USER, "Täglich 20 °C?")],
    "thought": [
        say(USER, "<tool>no</tool>"),
        say(ASSISTANT, "<think>\nso\n</think>\n\nIt is."),
        say(USER, "More a"),
        say(USER, "twice"),
        say(ASSISTANT, "<think>\nhm\n</think>\n\nFine."),
    ],
    "reasoned": [say(USER, "Why?"), say(ASSISTANT, "Because.", reasoning_content="\nlong\n")],
    "wrong": [say(ASSISTANT, "I begin."), say(ASSISTANT, "And go on.", tool_calls=[CALL, CALL])],
}


def environment() -> ImmutableSandboxedEnvironment:
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, "jinja2.ext.loopcontrols"]
    )

    def raise_exception(message):
        raise jinja2.TemplateError(message)

    def to_json(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    made.globals["raise_exception"] = raise_exception
    made.filters["tojson"] = to_json
    return made


def expected() -> list[dict]:
    cases = []
    for path in sorted(HERE.glob("*.jinja")):
        template = environment().from_string(path.read_text(encoding="utf-8"))
        for name, messages in CONVERSATIONS.items():
            for prompt in (True, False):
                values = {
                    "messages": messages,
                    "add_generation_prompt": prompt,
                    "bos_token": "<s>",
                    "eos_token": "</s>",
                    "date_string": "26 Jul 2024",
                    "settings": {"b": 1, "a": {"c": "d"}},
                }
                if prompt:
                    values["enable_thinking"] = False
                case = {"template": path.name, "conversation": name, "values": values}
                try:
                    cases.append(case | {"text": template.render(**values)})
                except (jinja2.TemplateError, TypeError, AttributeError, KeyError) as error:
                    cases.append(case | {"refused": str(error)})
    return cases


def main() -> None:
    text = json.dumps(expected(), ensure_ascii=False, indent=1) + "\n"
    path = HERE / "expected.json"
    if "--check" not in sys.argv:
        path.write_text(text, encoding="utf-8")
    elif path.read_text(encoding="utf-8") != text:
        sys.exit(f"{path} is not what jinja2 {jinja2.__version__} makes of the templates: run {Path(__file__).name}")


if __name__ == "__main__":
    main()
