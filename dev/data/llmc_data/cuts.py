"""Where a long text may be cut so that the tokens of its parts, put together, are those of the whole.

A BPE tokenizer first splits the text by a regular expression, then merges inside the pieces: a cut is safe where the
expression ends a piece in the whole text as well as in the part. For the expressions below that is so in three places.

After a newline with a character on either side that is no white space: only the white-space alternatives, and in
Llama 3's the newlines after punctuation, match a newline; none of them goes on into the next character, and
`\\s+(?!\\S)` takes one newline alone in neither text differently from `\\s+`. So the piece that has the newline ends with
it, in both texts.

Before a space that follows a character that is no white space: no alternative matches that character and the space
after it, and the only one that looks ahead, `\\s+(?!\\S)`, does not match the character.

Between a letter and what is neither letter nor white space: an alternative that matches a letter goes on with letters
alone. Letters are here those of ASCII and the ideographs of U+4E00 to U+9F7F; what is not, ASCII's, and CJK's 、。，！：；？.

Added tokens that are looked for in texts leave out the kinds of places that they have inside, or where it matters to
them what stands around: one that takes the white space before it, a cut after a newline; the white space behind it, one
before a space; one that stands as a word only, one after a letter.

NFC, the normalizer of Qwen's tokenizers, changes nothing of this: a newline composes with no character, and what is no
white space does not become any.

For any other tokenizer (another normalizer, a prefix space, another expression) nothing is proven, and a document is
tokenized whole.
"""

import re

# Each match ends where a cut is.
BETWEEN_CHARACTERS = re.compile(rb"(?=[\x00-\x7f\xc0-\xff])")
# A character that is no white space, a newline, the first byte of another. White space beyond ASCII lies in U+0085,
# U+00A0, U+1680, U+2000-U+205F and U+3000: first bytes C2, E1, E2 and the two bytes E3 80.
NO_SPACE = (
    rb"(?:[!-~]|[\xc3-\xdf][\x80-\xbf]|[\xe0\xe4-\xef][\x80-\xbf]{2}|\xe3[\x81-\xbf][\x80-\xbf]|\xe3\x80[\x81-\xbf]"
    rb"|\xf0[\x80-\xbf]{3})"
)
AFTER_A_LINE = NO_SPACE + rb"\n(?=[!-~\xc3-\xe0\xe4-\xf0])"
BEFORE_A_SPACE = NO_SPACE + rb"(?= )"
AFTER_LETTERS = (
    rb"(?:[A-Za-z](?=[!-@\[-`{-~])"
    rb"|(?:\xe4[\xb8-\xbf]|[\xe5-\xe8][\x80-\xbf]|\xe9[\x80-\xbd])[\x80-\xbf](?=\xe3\x80[\x81\x82]|\xef\xbc[\x81\x8c\x9a\x9b\x9f]))"
)
# Each kind of place, and what must not be asked of an added token there.
KINDS = {AFTER_A_LINE: "lstrip", BEFORE_A_SPACE: "rstrip", AFTER_LETTERS: "single_word"}

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + WORDS % "{1,3}"
QWEN2 = CONTRACTIONS + WORDS % ""


def proven(rules: dict, special_in_texts: bool = False) -> re.Pattern | None:
    """Where a text may be cut for the tokenizer.json with these rules; None where nothing is proven. `special_in_texts`:
    special tokens are looked for in texts, too."""
    model = rules.get("model") or {}
    plain_bpe = model.get("type") == "BPE" and not any(
        model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    )
    looked_for = [of for of in rules.get("added_tokens") or [] if special_in_texts or not of.get("special")]
    plain = rules.get("normalizer") in (None, {"type": "NFC"})
    if plain_bpe and plain and splits_by_known_rule(rules.get("pre_tokenizer") or {}):
        kinds = [kind for kind in KINDS if not any(matters_to(token, kind) for token in looked_for)]
        return re.compile(b"|".join(kinds)) if kinds else None
    return None


def matters_to(token: dict, kind: bytes) -> bool:
    """Whether a cut of this kind may keep the added token from being found, or let it be found, or change what it takes."""
    spelling, before = token["content"].encode(), b"x"
    if any(1 < match.end() <= len(spelling) for match in re.finditer(kind, before + spelling)):
        return True
    looks_around = any(token.get(key) for key in ("lstrip", "rstrip", "single_word"))
    return bool(token.get(KINDS[kind])) or (looks_around and spelling != spelling.strip())


def splits_by_known_rule(pre_tokenizer: dict) -> bool:
    """GPT-2's expression is built into ByteLevel; Llama 3's and Qwen 2's stand before one that splits nothing."""
    steps = pre_tokenizer.get("pretokenizers") if pre_tokenizer.get("type") == "Sequence" else [pre_tokenizer]
    if not steps or steps[-1].get("type") != "ByteLevel" or steps[-1].get("add_prefix_space"):
        return False
    if len(steps) == 1:
        return steps[0].get("use_regex", True)
    split = steps[0]
    return (
        len(steps) == 2
        and not steps[1].get("use_regex", True)
        and split.get("type") == "Split"
        # Matches cover all of a text, so that it is the same to remove what is between them (OLMo 2).
        and (split.get("behavior"), bool(split.get("invert"))) in (("Isolated", False), ("Removed", True))
        and split.get("pattern") in ({"Regex": LLAMA3}, {"Regex": QWEN2})
    )
