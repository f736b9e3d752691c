"""Trains a tokenizer.json (byte-level BPE, GPT-2's expression) on text: files, and folders of .txt and JSON lines."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from llmc_data.errors import DataError, exit_code
from llmc_data.sources import files_of_folder

END = "<|endoftext|>"  # separates documents; the only special token


def texts(files: list[Path], field: str) -> Iterator[str]:
    for path in files:
        with open(path, encoding="utf-8", errors="replace") as file:
            if path.suffix in (".jsonl", ".ndjson"):
                for number, line in enumerate(file, 1):
                    text = json.loads(line).get(field)
                    if not isinstance(text, str):
                        raise DataError(f"{path}: line {number}: no text in the field {field}\n  name another: --text-field")
                    yield text
            else:
                yield file.read()


def train(files: list[Path], field: str, size: int, out: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[END], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()), show_progress=False
    )
    tokenizer.train_from_iterator(texts(files, field), trainer)
    if tokenizer.get_vocab_size() != size:
        raise DataError(
            f"this text gives {tokenizer.get_vocab_size()} tokens, not {size}\n  give more text, or lower --vocab-size"
        )
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(json.dumps({"bos_token": None, "eos_token": END}) + "\n")
    print(f"{out}/tokenizer.json: {size} tokens")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="train_tokenizer", description=__doc__, usage="dev/data/train_tokenizer SOURCE… --out DIR [options]"
    )
    parser.add_argument("sources", nargs="+", type=Path, metavar="SOURCE")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="where tokenizer.json goes")
    parser.add_argument("--vocab-size", type=int, default=32768, metavar="N", help="at least 257 (32768)")
    parser.add_argument("--text-field", default="text", metavar="NAME", help="of JSON lines (text)")
    args = parser.parse_args()
    if args.vocab_size < 257:
        parser.error(f"--vocab-size {args.vocab_size}: 256 bytes and {END} are 257 tokens")
    files: list[Path] = []
    for source in args.sources:
        if not source.exists():
            raise DataError(f"there is no {source}")
        files += files_of_folder(source) if source.is_dir() else [source]
    wrong = [path for path in files if path.suffix not in (".jsonl", ".ndjson", ".txt")]
    if wrong:
        raise DataError(f"{wrong[0]}: expected .txt or .jsonl")
    train(files, args.text_field, args.vocab_size, args.out)


if __name__ == "__main__":
    sys.exit(exit_code("train_tokenizer", main))
