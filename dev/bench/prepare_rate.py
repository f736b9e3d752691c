"""The parts of prepare_rate: the text, its tokenizer, the plain loop, the comparison."""

import json
import random
import sys
from pathlib import Path

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

TEXT = Path(__file__).parents[1] / "data/tinyshakespeare.txt"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
SCRIPTS = {"Greek": 0x3B1, "Cyrillic": 0x430, "Armenian": 0x561, "Devanagari": 0x915, "Hiragana": 0x3042, "CJK": 0x4E10}


def write_text(path: str, megabytes: str) -> None:
    """Documents of shuffled lines of the bundled text; every eighth line in another script; numbers among them."""
    rng = random.Random(1)
    lines = TEXT.read_text().splitlines(keepends=True)
    for first in SCRIPTS.values():
        letters = {ord("a") + n: first + n for n in range(24)} | {ord("A") + n: first + n for n in range(24)}
        lines += [line.translate(letters) for line in rng.sample(lines[:40_000], 1000)]
    written = 0
    with open(path, "w", encoding="utf-8") as file:
        while written < 1e6 * float(megabytes):
            text = "".join(rng.choices(lines, k=rng.randrange(5, 200))) + f"{rng.randrange(10**9)}\n"
            written += len(text.encode())
            file.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")


def documents(path: str):
    with open(path, encoding="utf-8") as file:
        for line in file:
            yield json.loads(line)["text"]


def train_tokenizer(path: str, target: str) -> None:
    """A byte-level BPE with Llama 3's expression, 16,384 tokens, from the first documents."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    split = pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    trainer = trainers.BpeTrainer(
        vocab_size=16384, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    tokenizer.train_from_iterator((text for _, text in zip(range(4000), documents(path), strict=False)), trainer)
    tokenizer.save(target)


def loop(path: str, tokenizer: str, rank: str, ranks: str) -> None:
    encode = tokenizers.Tokenizer.from_file(tokenizer).encode
    texts = (text for n, text in enumerate(documents(path)) if n % int(ranks) == int(rank))
    print(sum(len(encode(text, add_special_tokens=False).ids) for text in texts))


def compare(folder: str, cores: str, of_loops: str, of_prepare: str) -> None:
    """Each in seconds by the clock and of the processors: the latter do not depend on who else is busy."""
    manifest = json.loads((Path(folder) / "out/manifest.json").read_text())
    splits = manifest["splits"].values()
    megabytes, tokens = sum(s["text_bytes"] for s in splits) / 1e6, sum(s["tokens"] for s in splits)
    counted = sum(int((Path(folder) / f"loop{n}").read_text()) for n in range(int(cores)))
    print(f"{megabytes:.0f} MB of text, {tokens} tokens of {manifest['tokenizer']['vocabulary']}, {cores} cores")
    rates = []
    for name, figures in (("plain loops", of_loops), ("prepare", of_prepare)):
        seconds, busy = map(float, figures.split())
        rates.append((megabytes / seconds, megabytes / busy))
        print(
            f"{name:12} {megabytes / seconds:7.2f} MB/s  {tokens / seconds / 1e6:6.2f}M tokens/s"
            f"  {megabytes / busy:6.2f} MB a second of a core"
        )
    by_clock, by_core = (prepare / plain for plain, prepare in zip(*rates, strict=True))
    print(f"prepare is {by_clock:.2f} times as fast by the clock, {by_core:.2f} times by the cores' time")
    if counted != tokens:
        sys.exit(f"FAIL the loops counted {counted} tokens")


if __name__ == "__main__":
    {"text": write_text, "tokenizer": train_tokenizer, "loop": loop, "compare": compare}[sys.argv[1]](*sys.argv[2:])
