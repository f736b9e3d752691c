"""Random conversations: of words, code, other scripts, white space at the edges, thinking, calls of tools, parts."""

import random

WORDS = (
    "the a Is it So, time noon Zürich 古池や 蛙 \U0001f9ed naïve e\u0301 x=1; def f(): return 'a' {\"b\": [1]} 12 1234 don't I'll"
    " ... -- <b> </b> ### 'q' \\n ＜ \u3000 ſ"
).split(" ")
GAPS = [" "] * 12 + ["\n", "\n\n", "  ", "\t", ""]
EDGES = ["", "", "", "", " ", "\n", "\n\n", "  "]


def words(rng: random.Random, spelt: list[str]) -> str:
    """Text that may spell one of these."""
    parts = [part for _ in range(rng.randint(1, 25)) for part in (rng.choice(WORDS), rng.choice(GAPS))]
    if spelt and rng.random() < 0.15:
        parts.insert(rng.randrange(len(parts) + 1), rng.choice(spelt))
    return rng.choice(EDGES) + "".join(parts) + "." + rng.choice(EDGES)


def tool(rng: random.Random) -> dict:
    return {"type": "function", "function": {"name": rng.choice(["time", "place"]), "parameters": {"zone": "string"}}}


def answer(rng: random.Random, spelt: list[str], calls: bool) -> dict:
    message = {"role": "assistant", "content": words(rng, spelt)}
    if rng.random() < 0.25:
        message["content"] = f"<think>\n{words(rng, [])}\n</think>\n\n{message['content']}"
    if calls:
        message["content"] = "" if rng.random() < 0.7 else message["content"]
        call = {"name": "time", "arguments": {"zone": rng.choice(["UTC", "a b"])}}
        message["tool_calls"] = [{"type": "function", "function": call}] * rng.choice([1, 1, 1, 2])
    return message


def talk(seed: str, spelt: list[str]) -> tuple[list[dict], list[dict] | None]:
    """Messages and tools."""
    rng = random.Random(seed)
    with_tools, messages = rng.random() < 0.25, []
    if rng.random() < 0.4:
        messages.append({"role": "system", "content": words(rng, spelt)})
    if rng.random() < 0.1 and not with_tools:  # Llama 3.2 takes the first message for a user's, if there are tools
        messages.append(answer(rng, spelt, False))
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": words(rng, spelt)})
        if with_tools and rng.random() < 0.5:
            messages.append(answer(rng, spelt, True))
            messages += [{"role": "tool", "content": words(rng, spelt)} for _ in messages[-1]["tool_calls"]]
        messages.append(answer(rng, spelt, False))
    if rng.random() < 0.1:
        messages.append({"role": "user", "content": words(rng, spelt)})
    return messages, [tool(rng)] if with_tools and rng.random() < 0.7 else None
