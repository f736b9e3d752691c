"""Where a long text may be cut so that the tokens of its parts, put together, are those of the whole.

A BPE tokenizer first splits the text by a regular expression, then merges inside the pieces: a cut is safe where the
expression ends a piece in the whole text as well as in the part. For the expressions below that is so after a newline
with a character on either side that is no white space. Only the white-space alternatives, and in Llama 3's the newlines
after punctuation, match a newline; none of them goes on into the next character, and `\\s+(?!\\S)` takes one newline
alone in neither text differently from `\\s+`. So the piece that has the newline ends with it, in both texts.

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
AFTER_A_LINE = re.compile(
    rb"(?:[!-~]|[\xc3-\xdf][\x80-\xbf]|[\xe0\xe4-\xef][\x80-\xbf]{2}|\xe3[\x81-\xbf][\x80-\xbf]|\xe3\x80[\x81-\xbf]"
    rb"|\xf0[\x80-\xbf]{3})\n(?=[!-~\xc3-\xe0\xe4-\xf0])"
)

CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
WORDS = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = CONTRACTIONS + WORDS % "{1,3}"
QWEN2 = CONTRACTIONS + WORDS % ""


def proven(rules: dict) -> re.Pattern | None:
    """Where a text may be cut for the tokenizer.json with these rules; None where nothing is proven."""
    model = rules.get("model") or {}
    plain_bpe = model.get("type") == "BPE" and not any(
        model.get(key) for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix")
    )
    plain_added = all(token.get("special") or is_plain(token) for token in rules.get("added_tokens") or [])
    if (
        plain_bpe
        and plain_added
        and rules.get("normalizer") in (None, {"type": "NFC"})
        and splits_by_known_rule(rules.get("pre_tokenizer") or {})
    ):
        return AFTER_A_LINE
    return None


def is_plain(added_token: dict) -> bool:
    """It is found wherever it stands, and nothing around it matters. (Special tokens are not looked for in texts.)"""
    about_around = any(added_token.get(key) for key in ("lstrip", "rstrip", "single_word"))
    return "\n" not in added_token["content"] and not about_around


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
