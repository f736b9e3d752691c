"""Conversations → documents: a conversation as its template renders it, and which of it is learnt, what the assistant
says, to its end of turn.

What is learnt of message i begins where the template's generation prompt after messages 0 to i-1 ends, and ends where
the rendering of messages 0 to i does. A template may render an answer differently when more follow: Qwen 3's drops the
thinking before the last question. Then the answer is learnt in a document of its own, the rendering of messages 0 to i,
as the model sees them when it answers; each answer in the longest such rendering in which it stands unchanged. Or the
template marks what is learnt itself, with {% generation %} … {% endgeneration %}, in the rendering of all messages.

A message with "weight": 0 is not learnt. What would be lost in silence is refused: tools and calls that the template does
not render, and a conversation whose answers have a role that is not learnt.
"""

import os
from dataclasses import dataclass, field

import numpy as np

from llmc_data.errors import DataError
from llmc_data.spelt import guarded
from llmc_data.template import CLOSE, OPEN, WORDS, ChatTemplate
from llmc_data.tokenizer import Tokenizer

ANSWERS = "assistant"  # the role whose messages are learnt
OTHER_ROLES = ("system", "developer", "user", "tool", "function", "ipython")  # which a conversation without it may have
CALLS = ("tool_calls", "function_call")


@dataclass(frozen=True)
class Span:
    """A learnt part of a rendering, in characters."""

    first: int
    last: int
    marked: bool = False  # by the template itself
    closed: bool = True  # a special token at its end is the template's, not one of the words'


@dataclass
class Rendering:
    text: str
    messages: int  # that it renders: the first ones of the conversation
    spans: list[Span] = field(default_factory=list)


@dataclass
class Document:
    ids: np.ndarray
    mask: bytes  # 1: the token is learnt
    messages: int
    ends: list[int]  # the special tokens that end its learnt turns


@dataclass
class Prepared:
    """What a conversation gives."""

    documents: list[Document]
    spelt: int  # special tokens that others than the assistant spell: they stay text


class Chat:
    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer):
        self.template, self.tokenizer, self.spelling = template, tokenizer, tokenizer.spelling

    def prepare(self, messages: list[dict], tools: list | None = None) -> Prepared:
        """The documents of a conversation, in the order of their answers; a function of the conversation alone."""
        messages = [self.without_parts(message, i) for i, message in enumerate(messages)]
        messages, spelt = self.with_guards(messages)
        tools, of_tools = guarded(tools, self.spelling)
        renderings = self.renderings(messages, tools)
        return Prepared([self.document(rendering) for rendering in renderings], spelt + of_tools)

    def without_parts(self, message: dict, i: int) -> dict:
        """The message with its content joined, if that has parts and the template takes none. Text is all that they are."""
        parts = message.get("content")
        if not isinstance(parts, list):
            return message
        parts = [{"type": "text", "text": part} if isinstance(part, str) else part for part in parts]
        for part in parts:
            kind = part.get("type") or "text" if isinstance(part, dict) else type(part).__name__
            if kind != "text" or not isinstance(part.get("text"), str):
                raise DataError(f"message {i} has a part of the type {kind}\n  expected parts of text: leave it out")
        return message | {"content": parts if self.template.takes_parts else "".join(part["text"] for part in parts)}

    def with_guards(self, messages: list[dict]) -> tuple[list[dict], int]:
        """Special tokens that others than the assistant spell are guarded (spelt.py)."""
        safe, spelt = [], 0
        for i, message in enumerate(messages):
            if self.spelling.search(message["role"]):
                raise DataError(f"message {i} has the role {message['role']!r}, which spells a special token")
            if message["role"] != ANSWERS:
                words, found = guarded(message, self.spelling)
                message, spelt = words | {"role": message["role"]}, spelt + found
            safe.append(message)
        return safe, spelt

    def renderings(self, messages: list[dict], tools: list | None) -> list[Rendering]:
        text = self.template.render(messages, tools)
        learns = [weight_of(message, i) == 1 for i, message in enumerate(messages)]
        if OPEN in text:
            self.refuse_what_is_not_rendered([Rendering(text, len(messages))], messages, tools)
            text, spans = unmark(text)
            return [Rendering(text, len(messages), self.marked_and_learnt(spans, messages, learns))]
        strange = [message["role"] for message in messages if message["role"] not in OTHER_ROLES]
        if strange and ANSWERS not in strange:
            raise DataError(
                f"no message has the role {ANSWERS}, whose messages are learnt, and one has the role {strange[0]}\n"
                f"  rename it, or mark what is learnt in the template with {{% generation %}} … {{% endgeneration %}}"
            )
        renderings = [Rendering(text, len(messages))]  # from the longest to the shortest
        for i in reversed(range(len(messages))):
            if messages[i]["role"] == ANSWERS and learns[i]:
                self.add_answer(renderings, messages[: i + 1], tools)
        learnt = [rendering for rendering in reversed(renderings) if rendering.spans] or renderings
        self.refuse_what_is_not_rendered(learnt, messages, tools)
        return learnt

    def add_answer(self, renderings: list[Rendering], messages: list[dict], tools: list | None) -> None:
        """Adds the part of the last of these messages to the longest rendering in which it stands unchanged, else to
        one of its own."""
        text = self.template.render(messages, tools)
        first, closed = self.beginning(text, messages, tools), self.is_closed(messages, tools)
        for rendering in renderings:
            last = self.end_in(rendering.text, text, messages, tools)
            if last is not None:
                break
        else:
            rendering, last = Rendering(text, len(messages)), len(text)
            renderings.append(rendering)
        rendering.spans.insert(0, Span(first, last, closed=closed))

    def beginning(self, text: str, messages: list[dict], tools: list | None) -> int:
        """The place in the rendering at which the model's words begin. It is after the generation prompt, if the rendering
        begins with the text that the model goes on from; else where the rendering differs from that of another answer."""
        before = messages[:-1]
        given = self.template.render_if_taken(before, tools, prompt=True)  # many templates take no empty conversation
        if given is not None and text.startswith(given):
            return len(given)
        parted = len(os.path.commonprefix([text, self.other_answer(messages, tools)]))
        prompt = self.template.generation_prompt
        found = text.rfind(prompt, 0, parted) if prompt and not before else -1
        return found + len(prompt) if found >= 0 else parted

    def other_answer(self, messages: list[dict], tools: list | None) -> str:
        return self.template.render([*messages[:-1], {"role": ANSWERS, "content": WORDS}], tools)

    def after_words(self, messages: list[dict], tools: list | None) -> str:
        """What the template renders after the words of the last of these messages."""
        return self.other_answer(messages, tools).rpartition(WORDS)[2]

    def is_closed(self, messages: list[dict], tools: list | None) -> bool:
        """Whether it is the template's, if a special token is the last in this answer."""
        _, in_words = guarded(messages[-1], self.spelling)
        return not in_words or self.spelling.search(self.after_words(messages, tools)) is not None

    def end_in(self, whole: str, text: str, messages: list[dict], tools: list | None) -> int | None:
        """Where the answer that ends `text` ends in `whole`; None if it stands otherwise there. A template may end all of
        a conversation with more than a turn, so the special token that ends the turn is enough."""
        if whole.startswith(text):
            return len(text)
        behind = self.after_words(messages, tools)
        end_of_turn = self.spelling.search(behind)
        if end_of_turn is None or not text.endswith(behind):
            return None
        last = len(text) - len(behind) + end_of_turn.end()
        return last if whole.startswith(text[:last]) else None

    def refuse_what_is_not_rendered(
        self, renderings: list[Rendering], messages: list[dict], tools: list | None
    ) -> None:
        """A template that ignores tools, calls or what a message says renders the same text without them."""
        lost = "its tools" if tools and self.same(renderings, messages, None, 0) else None
        for i, message in enumerate(messages):
            said = [words.strip() for words in texts_of(message.get("content"))]
            seen = any(all(words in of.text for words in said) for of in renderings)  # the usual case, which is quick
            for key in [key for key in CALLS if message.get(key)] + ["content"] * (not seen):
                without = {name: value for name, value in message.items() if name != key}
                without |= {"content": ""} if key == "content" else {}
                if not lost and self.same(renderings, [*messages[:i], without, *messages[i + 1 :]], tools, i):
                    lost = f"the {key} of message {i}, whose role is {message['role']}"
        if lost:
            raise DataError(
                f"the template {self.template.name} does not render {lost}\n"
                "  leave the conversation out, or give a template that renders it with --template FILE.jinja"
            )

    def same(self, renderings: list[Rendering], messages: list[dict], tools: list | None, i: int) -> bool:
        """Whether these messages and tools give the same text as before, in all renderings that have message i."""
        others = [rendering for rendering in renderings if rendering.messages > i]
        return bool(others) and all(
            self.template.render_if_taken(messages[: of.messages], tools) == of.text for of in others
        )

    def marked_and_learnt(self, spans: list[Span], messages: list[dict], learns: list[bool]) -> list[Span]:
        """What the template marked, without the messages of weight 0."""
        if not all(learns):
            learns = [learns[i] for i, message in enumerate(messages) if message["role"] == ANSWERS]
            if len(learns) != len(spans):
                raise DataError(
                    f"the template {self.template.name} marks {len(spans)} parts, and {len(learns)} messages have"
                    f" the role {ANSWERS}: it is not known which part the weight 0 stands for\n"
                    "  leave the weights out"
                )
            spans = [span for span, learnt in zip(spans, learns, strict=True) if learnt]
        return [span for span in spans if span.first < span.last]

    def document(self, rendering: Rendering) -> Document:
        """The tokens of a rendering, and for each whether it is learnt: a character of it is in a learnt part, and it
        is no white space after the special token that ends the turn (ChatML renders a newline there)."""
        text = rendering.text
        ids, starts, stops = self.tokenizer.encode_rendered(text)
        mask, ends = np.zeros(len(ids), np.uint8), []
        for span in rendering.spans:
            inside = np.flatnonzero((starts < span.last) & (stops > span.first))
            special = [n for n, t in enumerate(inside) if int(ids[t]) in self.tokenizer.special] if span.closed else []
            if special:
                end, behind = inside[special[-1]], inside[special[-1] + 1 :]
                blank = not len(behind) or text[starts[behind[0]] : span.last].isspace()
                ends += [int(ids[end])] if blank else []
                inside = inside[: -len(behind)] if len(behind) and blank and not span.marked else inside
            mask[inside] = 1
        return Document(ids, mask.tobytes(), rendering.messages, ends)


def texts_of(content) -> list[str]:
    """The strings of a message's content, which may have parts."""
    parts = content if isinstance(content, list) else [content]
    parts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    return [part for part in parts if isinstance(part, str)]


def weight_of(message: dict, i: int) -> int:
    """1 if the message is learnt, as if its weight is missing; 0 if not."""
    weight = message.get("weight", 1)
    if weight not in (0, 1):
        raise DataError(f"message {i} has the weight {weight!r}\n  expected 0 or 1: a token is learnt, or it is not")
    return int(weight)


def unmark(text: str) -> tuple[str, list[Span]]:
    """Takes the marks out of a text; where what stood between them is."""
    plain, spans, length = [], [], 0
    for n, part in enumerate(text.split(OPEN)):
        inside, _, outside = part.partition(CLOSE) if n else ("", "", part)
        spans += [Span(length, length + len(inside), marked=True)] * (n > 0)
        length += len(inside) + len(outside)
        plain += [inside, outside]
    return "".join(plain), spans
