"""What stands between documents: a token before each, a token after each, both, or nothing."""

from dataclasses import dataclass

import numpy as np

from llmc_data.errors import DataError
from llmc_data.template import CLOSE, OPEN, ChatTemplate
from llmc_data.tokenizer import USUAL_END, USUALLY_NOTHING, ByteTokenizer, Tokenizer

PLACES = ("before", "after", "both", "none")
SOME_TALK = [{"role": role, "content": "Yes."} for role in ("user", "assistant", "user", "assistant")]


@dataclass(frozen=True)
class Delimiter:
    begin: tuple[str, int] | None = None  # name and number of the token before each document
    end: tuple[str, int] | None = None  # of that after each

    def describe(self) -> dict | None:
        """For the manifest."""
        named = [dict(zip(("token", "id"), token, strict=True)) for token in (self.begin, self.end) if token]
        if len(named) < 2:
            return {"place": "before" if self.begin else "after", **named[0]} if named else None
        return {"place": "both", **named[0], "end_token": self.end[0], "end_id": self.end[1]}

    def around(self, ids: np.ndarray, rendered: bool) -> tuple[list[int], list[int]]:
        """What stands before and after a document. A template that rendered a delimiter itself gets no second one."""
        before = [] if self.begin is None else [self.begin[1]]
        after = [] if self.end is None else [self.end[1]]
        if rendered and len(ids):
            before = [] if ids[0] in before else before
            after = [] if ids[-1] in after else after
        return before, after

    def refuse_inside(self, ids: np.ndarray) -> None:
        """A delimiter anywhere but at its border would pass for another document's."""
        for token, border in ((self.begin, 0), (self.end, len(ids) - 1)):
            inside = [n for n in np.flatnonzero(ids == token[1]).tolist() if n != border] if token else []
            if inside:
                place = "--delimiter before or after and " if self.begin and self.end else ""
                raise DataError(
                    f"the delimiter {token[0]} ({token[1]}) is inside the conversation, too: token {inside[0]} of"
                    f" {len(ids)}\n  it would not show where conversations begin and end: give {place}"
                    "--delimiter-token TOKEN with one that the template does not render there, or --delimiter none"
                )


def find(place: str, wanted: str | None, tokenizer: ByteTokenizer | Tokenizer) -> Delimiter:
    """The tokens that the command asks for, else the tokenizer's own."""
    if place == "none":
        return Delimiter()
    if place != "both":
        token = tokenizer.delimiter(wanted, ends=place == "after")
        return Delimiter(begin=token) if place == "before" else Delimiter(end=token)
    begin, end = tokenizer.begin_and_end()
    if begin is None or end is None or begin == end:
        name = tokenizer.path or tokenizer.name
        raise DataError(
            f"--delimiter both takes two tokens: {name} begins a text with {begin or 'none'} and ends it with"
            f" {end or 'none'}\n  give --delimiter before or --delimiter after"
        )
    return Delimiter(tokenizer.delimiter(begin), tokenizer.delimiter(end))


def of_conversations(template: ChatTemplate, tokenizer: Tokenizer) -> tuple[str, str | None]:
    """Place and token where the command asks for none: the tokenizer's own before each conversation. ChatML begins or
    ends every turn with that one, and Llama 2 every pair of turns; then a token that no turn has stands after each
    conversation, which so begins as a prompt does: one that ends a text, or one that stands for nothing. There may be
    none, and then nothing tells conversations apart."""
    text = template.render_if_taken(SOME_TALK)
    if text is None:
        return "before", None  # a template that takes only some conversations
    ids, _, _ = tokenizer.encode_rendered(text.replace(OPEN, "").replace(CLOSE, ""))
    begin, end = tokenizer.begin_and_end()
    if begin or end:
        if tokenizer.delimiter(None)[1] not in ids[1:]:
            return "before", None
    named = tokenizer.named_tokens() or {}
    for name in (*USUAL_END, named.get("pad_token"), named.get("unk_token"), *USUALLY_NOTHING):
        number = tokenizer.tokenizer.token_to_id(name) if name else None
        if number is not None and number not in ids:
            return "after", name
    return "none", None
