"""tokenizer.json files in the style of Llama 3 and of Llama 2, trained on a text by the `tokenizers` library."""

import collections
import json

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def added(id, content, **flags):
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True} | flags
    return {"id": id, "content": content} | flags


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(**flags):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True} | flags


def sequence(kind, *steps):
    return {"type": "Sequence", kind: list(steps)}


def template(before, behind, ids):
    special = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    text = lambda name: {"Sequence": {"id": name, "type_id": 0}}
    single = [special(name) for name in before] + [text("A")] + [special(name) for name in behind]
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": single + [text("B")],
        "special_tokens": {n: {"id": n, "ids": [ids[n]], "tokens": [n]} for n in before + behind},
    }


def llama3(lines, size):
    """Bytes, Llama 3's pattern, whole words that no merges reach, and special tokens behind the vocabulary."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(LLAMA3_WORDS), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(lines, trainers.BpeTrainer(vocab_size=size, initial_alphabet=alphabet, show_progress=False))
    file = json.loads(tokenizer.to_str())
    file["pre_tokenizer"] = sequence("pretokenizers", split(LLAMA3_WORDS), byte_level(use_regex=False))
    vocabulary = file["model"]["vocab"]
    for word in ["Ġunreachable", "Ġquixotic", "zzyzx", "Ã©tÃ©", "ĊĊĊĊĊ"]:
        vocabulary.setdefault(word, len(vocabulary))
    file["model"]["ignore_merges"] = True
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"]
    tokens = [added(len(vocabulary) + i, name) for i, name in enumerate(names)]
    tokens.append(added(len(vocabulary) + 4, "<|added|>", special=False))
    tokens.append(added(len(vocabulary) + 5, "<|single|>", special=False, single_word=True))
    tokens.append(added(len(vocabulary) + 6, "<|strips|>", lstrip=True, rstrip=True))
    tokens.append(added(len(vocabulary) + 7, "<|left|>", special=False, lstrip=True, normalized=True))
    tokens.append(added(len(vocabulary) + 8, "<|right|>", rstrip=True, single_word=True))
    file["added_tokens"] = tokens
    ids = {token["content"]: token["id"] for token in tokens}
    file["post_processor"] = sequence("processors", byte_level(), template(["<|begin_of_text|>"], [], ids))
    file["decoder"] = byte_level()
    return file


def only_frequent(lines, characters):
    """The lines without all but the most frequent characters. (The trainer's own limit leaves ties to chance.)"""
    lines = list(lines)
    counts = collections.Counter("".join(lines))
    rare = sorted(counts, key=lambda c: (-counts[c], c))[characters:]
    return [line.translate(dict.fromkeys(map(ord, rare))) for line in lines]


def llama2(lines, size):
    """Characters with bytes to fall back to; spaces written as ▁, one put in front; the whole text is one word."""
    spaces = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = spaces
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("▁*[^▁]+|▁+"), "isolated")  # for the training only
    special = ["<unk>", "<s>", "</s>"]
    first = special + [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=first, show_progress=False)
    tokenizer.train_from_iterator(only_frequent(lines, 300), trainer)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    file = json.loads(tokenizer.to_str())
    file["pre_tokenizer"] = None
    ids = {name: i for i, name in enumerate(special)}
    file["added_tokens"] = [added(ids[name], name) for name in special]
    file["post_processor"] = template(["<s>"], [], ids)
    return file
