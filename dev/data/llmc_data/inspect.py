"""Says what shards of tokens and masks hold: header, counts, documents, how the text begins."""

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from llmc_data import manifest
from llmc_data.counts import counted
from llmc_data.errors import DataError, exit_code
from llmc_data.shards import MASK, Shard, open_shard, sha256_of
from llmc_data.tokenizer import ByteTokenizer, Tokenizer

CHUNK = 1 << 24


def chunks(array: np.ndarray) -> Iterator[np.ndarray]:
    return (array[start : start + CHUNK] for start in range(0, len(array), CHUNK))


def tokenizer_of(content: dict | None, folder: Path) -> Tokenizer | ByteTokenizer | None:
    """The one that the manifest names; without a manifest the one in the folder of the shard."""
    if content and content["tokenizer"]["file"] is None:
        return ByteTokenizer()
    return Tokenizer(folder) if (folder / "tokenizer.json").is_file() else None


def head_of(ids: np.ndarray, tokenizer: Tokenizer | ByteTokenizer | None) -> str:
    if tokenizer is None:
        return " ".join(map(str, ids.tolist()))
    return tokenizer.decode(ids.tolist())


def describe_tokens(shard: Shard, content: dict | None, tokenizer, length: int) -> Iterator[tuple[str, str]]:
    tokens = shard.array()
    smallest = min(int(chunk.min()) for chunk in chunks(tokens))
    largest = max(int(chunk.max()) for chunk in chunks(tokens))
    vocabulary = content["tokenizer"]["vocabulary"] if content else None
    yield "tokens", f"{shard.tokens:,} of {smallest} to {largest}" + (f", vocabulary {vocabulary}" if content else "")
    if content and largest >= vocabulary:
        raise DataError(f"{shard.path}: token {largest}\n  expected tokens below the vocabulary of {vocabulary}")
    if content and content["delimiter"]:
        of = content["delimiter"]
        both = [(of["token"], of["id"])] + ([(of["end_token"], of["end_id"])] if "end_id" in of else [])
        counts = [sum(int((chunk == number).sum()) for chunk in chunks(tokens)) for _, number in both]
        said = [f"{counted(count, 'delimiter')} ({token}, {id})" for count, (token, id) in zip(counts, both, strict=True)]
        yield "documents", ", ".join(said)
    yield "begins", repr(head_of(tokens[:length], tokenizer))
    mask = shard.path.with_suffix(".mask")
    if mask.exists() and open_shard(mask).tokens != shard.tokens:
        raise DataError(f"{mask}: {open_shard(mask).tokens} tokens\n  expected {shard.tokens}, as in {shard.path}")


def describe_mask(shard: Shard, tokenizer, length: int) -> Iterator[tuple[str, str]]:
    mask = shard.array()
    largest = max(int(chunk.max()) for chunk in chunks(mask))
    if largest > 1:
        raise DataError(f"{shard.path}: a mask that holds {largest}\n  expected 0 or 1")
    learnt = sum(int(chunk.sum()) for chunk in chunks(mask))
    yield "tokens", f"{shard.tokens:,}, {learnt:,} of them learnt ({100 * learnt / shard.tokens:.1f}%)"
    data_file = shard.path.with_suffix(".bin")
    if data_file.exists():
        tokens = open_shard(data_file).array()
        edges = np.flatnonzero(np.diff(mask[: len(tokens)], prepend=0)).tolist() + [len(mask)]
        first = edges[0]
        last = min(edges[1] if len(edges) > 1 else first, first + length)
        yield "learnt first", f"tokens {first} to {last - 1}: {head_of(tokens[first:last], tokenizer)!r}"


def inspect(path: Path, length: int) -> None:
    shard = open_shard(path)
    layout = shard.layout
    content, tokenizer = manifest.read(path.parent), None
    record = next((r for r in content["shards"] if path.stem == Path(r["name"]).stem), None) if content else None
    if record is None:  # the manifest is another data set's
        content = None
    tokenizer = tokenizer_of(content, path.parent)
    print(path)
    lines = [("header", f"magic {layout.magic}, version {layout.version}: {layout.name}")]
    if layout is MASK:
        lines += describe_mask(shard, tokenizer, length)
    else:
        lines += describe_tokens(shard, content, tokenizer, length)
    if record:
        expected = record["mask"]["sha256"] if layout is MASK else record["sha256"]
        if sha256_of(path) != expected:
            raise DataError(
                f"{path}: its sha256 is not the manifest's\n  expected {expected}: it was changed or damaged"
            )
        lines.append(("sha256", f"{expected}, as in the manifest"))
    for name, value in lines:
        print(f"  {name:13} {value}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="inspect", description=__doc__, usage="dev/data/inspect SHARD… [--head N]")
    parser.add_argument("shards", nargs="+", type=Path, metavar="SHARD", help="a .bin or .mask")
    parser.add_argument("--head", type=int, default=40, metavar="N", help="tokens to show (40)")
    options = parser.parse_args()
    for path in options.shards:
        inspect(path, options.head)


if __name__ == "__main__":
    sys.exit(exit_code("inspect", main))
