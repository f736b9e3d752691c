"""Trains a tokenizer.json (byte-level BPE, GPT-2's expression) on the texts of prepare's sources."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

from llmc_data.download import cache_folder
from llmc_data.errors import DataError, exit_code
from llmc_data.readers import Reading, batches
from llmc_data.sources import Source, resolve

END = "<|endoftext|>"  # separates documents; the only special token


def texts(sources: list[Source], field: str, most: float) -> Iterator[str]:
    """The documents' texts, until they have `most` characters."""
    left = most
    for source in sources:
        for batch in batches(source.path, source.label, source.format, Reading(field=field), None, 0):
            for piece, place in zip(batch.pieces, batch.places, strict=True):
                text = None if piece is None else piece.decode(errors="replace")
                if batch.json:
                    text = field_of(text, field)
                if not isinstance(text, str):
                    where = f"{batch.file}: {batch.unit} {place}"
                    raise DataError(f"{where}: no text in the field {field}\n  name another: --text-field")
                yield text
                left -= len(text)
                if left <= 0:
                    return


def field_of(line: str, field: str):
    """What a line of JSON has there; None if it is no JSON object, or has not the field."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row.get(field) if isinstance(row, dict) else None


def train(documents: Iterator[str], size: int, out: Path) -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = byte_level, decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=[END], initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(documents, trainer)
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
    option = parser.add_argument
    option("sources", nargs="+", metavar="SOURCE", help="as prepare's")
    option("--out", type=Path, required=True, metavar="DIR", help="where tokenizer.json goes")
    option("--vocab-size", type=int, default=32768, metavar="N", help="at least 257 (32768)")
    option("--most", type=float, default=2e8, metavar="N", help="characters to train it on, the first ones (2e8)")
    option("--text-field", default="text", metavar="NAME", help="field or column of the text (text)")
    option("--cache", type=Path, default=cache_folder(), metavar="DIR", help=f"of downloads ({cache_folder()})")
    args = parser.parse_args()
    if args.vocab_size < 257:
        parser.error(f"--vocab-size {args.vocab_size}: 256 bytes and {END} are 257 tokens")
    train(texts(resolve(args.sources, args.cache, None)[0], args.text_field, args.most), args.vocab_size, args.out)


if __name__ == "__main__":
    sys.exit(exit_code("train_tokenizer", main))
