"""Special tokens that words spell: in the words of all but the assistant they stay text.

A guard, a code point that no text may use, is put after the first character of each such spelling before the template
renders it. Afterwards every spelling without a guard is a special token. Where guards are found, these tokens get
stand-ins, other names for the same tokens, and the text is tokenized without guards, as plain text with stand-ins in it:
so the tokenizer treats what is around a special token in the same way as ever.
"""

import re
from functools import lru_cache

import numpy as np

from llmc_data.errors import DataError

GUARD, AROUND_STAND_IN = "\ufdd2", "\ufdd3"


def any_of(names) -> re.Pattern:
    """Finds each name, the longest where several begin, as tokenizers do; nothing if there are none."""
    return re.compile("|".join(map(re.escape, sorted(names, key=len, reverse=True))) or r"(?!)")


@lru_cache
def beginnings(special: re.Pattern) -> re.Pattern:
    """The first character of each spelling, also of one that begins inside another."""
    return re.compile(f"(?={special.pattern})(.)", re.DOTALL)


def guarded(value, special: re.Pattern):
    """A value of JSON with guards in its strings, and how many."""
    if isinstance(value, str):
        found = sum(1 for _ in special.finditer(value))
        return beginnings(special).sub(rf"\1{GUARD}", value) if found else value, found
    if isinstance(value, list):
        pairs = [guarded(of, special) for of in value]
        return [of for of, _ in pairs], sum(count for _, count in pairs)
    if isinstance(value, dict):
        keys = {key: guarded(key, special) for key in value}
        pairs = {keys[key][0]: guarded(of, special) for key, of in value.items()}
        found = sum(count for _, count in [*keys.values(), *pairs.values()])
        return {key: of for key, (of, _) in pairs.items()}, found
    return value, 0


class StandIns:
    def __init__(self, tokenizer, special: dict):
        """Adds them to the tokenizer (of the library); they stand for `special`, its added tokens by their numbers."""
        import tokenizers  # here, so that bytes do not wait for it

        known = tokenizer.get_vocab(with_added_tokens=True).values()
        names = {token.content: f"{AROUND_STAND_IN}{number}{AROUND_STAND_IN}" for number, token in special.items()}
        tokenizer.add_tokens(
            [
                tokenizers.AddedToken(
                    names[of.content],
                    single_word=of.single_word,
                    lstrip=of.lstrip,
                    rstrip=of.rstrip,
                    normalized=of.normalized,
                )
                for of in special.values()
            ]
        )
        numbers = {tokenizer.token_to_id(names[of.content]): number for number, of in special.items()}
        if not numbers.keys().isdisjoint(known):  # the library counts entries, and goes on from there
            raise DataError("the tokenizer's numbers have holes: words that spell special tokens cannot stay text")
        self.names, self.found = names, any_of([*names, GUARD])
        self.words = {of.content for of in special.values() if of.single_word}  # no part of a longer word
        self.number_of = np.arange(max(numbers, default=-1) + 1, dtype=np.uint32)
        self.number_of[list(numbers)] = list(numbers.values())

    def put_in(self, text: str) -> tuple[str, np.ndarray]:
        """The text with stand-ins and without guards, and for each of its characters where that stood in the text."""
        parts, places, end = [], [], 0
        for match in self.found.finditer(text):
            stand_in = self.names.get(match[0], "")
            around = text[max(0, match.start() - 1) : match.start()] + text[match.end() : match.end() + 1]
            if match[0] in self.words and re.search(r"\w", around):
                continue
            parts += [text[end : match.start()], stand_in]
            places += [np.arange(end, match.start()), np.full(len(stand_in), match.start())]
            end = match.end()
        places.append(np.arange(end, len(text) + 1))
        return "".join([*parts, text[end:]]), np.concatenate(places)
