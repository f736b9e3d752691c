"""A row's JSON object → a conversation, or a prompt with its completion. What it is, its keys say."""

import json
from collections.abc import Collection

from llmc_data.errors import BadRow

TEXT, CHAT, COMPLETION = "text", "conversations", "prompts with completions"  # what rows are read as
MESSAGES, SHAREGPT = ("messages", "conversations")  # a conversation's usual fields
PAIR = ("prompt", "completion")
BESIDE = ("tools", "system")  # what else a conversation has
# ShareGPT's names → the roles of chat templates
ROLES = {
    "human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "chatgpt": "assistant",
    "bing": "assistant", "bard": "assistant", "model": "assistant", "function_call": "assistant", "system": "system",
    "tool": "tool", "observation": "tool", "function_response": "tool",
}  # fmt: skip


def columns(kind: str, field: str | None, names: Collection[str]) -> list[str]:
    """Which of a table's columns are read; none if it has not what is needed."""
    if kind == TEXT:
        return [field] if field in names else []
    alternatives = [(field,)] if field else [PAIR] if kind == COMPLETION else [(MESSAGES,), (SHAREGPT,), PAIR]
    found = next((list(wanted) for wanted in alternatives if all(name in names for name in wanted)), [])
    return found + [name for name in BESIDE if found and kind == CHAT and name in names and name not in found]


def expected(kind: str, field: str | None) -> str:
    return field or (" and ".join(PAIR) if kind == COMPLETION else f"{MESSAGES}, {SHAREGPT}, or {' and '.join(PAIR)}")


def missing(names: Collection[str], kind: str, field: str | None, what: str = "field") -> str:
    """What to say of a row or table that lacks what is needed."""
    help = "name the right one with --text-field"
    if kind == TEXT and any(columns(CHAT, None, names)):
        help = "conversations, and prompts with completions, are prepared with --chat"
    return f"no {what} {expected(kind, field)}\n  it has {', '.join(names) or 'none'}: {help}"


def conversation(row: dict, field: str | None) -> tuple[list[dict], list | None, str]:
    """Messages, tools, and what the row was."""
    names = columns(CHAT, field, row)
    if not names:
        raise BadRow(missing(row, CHAT, field))
    tools, system = tools_of(row), row.get("system")
    if names[: len(PAIR)] == list(PAIR):
        messages, shape = pair_as_messages(*(row[name] for name in PAIR)), " and ".join(PAIR)
    else:
        value = row[names[0]]
        if value is None:
            raise BadRow(f"{names[0]} is null\n  drop the row, or name another field with --text-field")
        messages = value if isinstance(value, list) else [value]
        of_sharegpt = all(isinstance(turn, dict) and "from" in turn and "role" not in turn for turn in messages)
        shape = f"{names[0]} of ShareGPT" if of_sharegpt and messages else names[0]
        messages = [message_of(turn, i) for i, turn in enumerate(messages)] if of_sharegpt else messages
    if not (messages and all(map(is_message, messages))):
        raise BadRow(f'{names[0]} is no conversation\n  expected [{{"role": …, "content": …}}, …]')
    if isinstance(system, str) and system.strip() and messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    return [without_null_keys(message) for message in messages], tools, shape


def message_of(turn: dict, i: int) -> dict:
    """ShareGPT's {"from": …, "value": …}."""
    role = ROLES.get(turn["from"]) if isinstance(turn["from"], str) else None
    if role is None:
        raise BadRow(f"message {i} is from {turn['from']!r}\n  expected one of {', '.join(ROLES)}")
    return {key: value for key, value in turn.items() if key not in ("from", "value")} | {
        "role": role,
        "content": turn.get("value"),
    }


def pair_as_messages(prompt, completion) -> list[dict]:
    """Strings are a user's message and the assistant's; of messages, those of the prompt are not learnt."""
    if isinstance(prompt, str) and isinstance(completion, str):
        return [{"role": "user", "content": prompt}, {"role": "assistant", "content": completion}]
    if not (isinstance(prompt, list) and isinstance(completion, list) and all(map(is_message, prompt + completion))):
        raise BadRow("prompt and completion are neither two strings nor two lists of messages")
    return [message | {"weight": 0} if message["role"] == "assistant" else message for message in prompt] + completion


def pair_of_texts(row: dict) -> tuple[str, str]:
    """Without --chat."""
    if not all(name in row for name in PAIR):
        raise BadRow(missing(row, COMPLETION, None))
    if not all(isinstance(row[name], str) for name in PAIR):
        raise BadRow("prompt and completion are not two strings\n  lists of messages are prepared with --chat")
    return row["prompt"], row["completion"]


def is_message(value) -> bool:
    said = isinstance(value, dict) and (value.get("content") is not None or value.get("tool_calls") is not None)
    return said and isinstance(value.get("role"), str) and isinstance(value.get("content"), str | list | None)


def without_null_keys(message: dict) -> dict:
    """So that a template that asks whether a message has tool_calls is told what counts. Null is a content."""
    return {key: value for key, value in message.items() if value is not None or key == "content"}


def tools_of(row: dict) -> list | None:
    """A conversation's tools: a list, perhaps as JSON in a string, for columns that hold tools of many shapes."""
    tools = row.get("tools")
    if isinstance(tools, str):
        try:
            tools = json.loads(tools or "null")
        except ValueError as error:
            raise BadRow(f"tools is a string, but not JSON: {error}") from None
    if not isinstance(tools, list | None):
        raise BadRow(f"tools is {type(tools).__name__}\n  expected a list, or a string that is one in JSON")
    return tools
