"""manifest.json in the folder of the shards: what they hold, and of what they were made."""

import json
from dataclasses import asdict
from pathlib import Path

from llmc_data.errors import DataError
from llmc_data.shards import BLOCK_BYTES, Layout, write_whole
from llmc_data.sources import Source
from llmc_data.split import SplitWriter
from llmc_data.tokenizer import ByteTokenizer, Tokenizer

FILE = "manifest.json"
FORMAT = "train_llama shards 1"


def describe_tokenizer(tokenizer: ByteTokenizer | Tokenizer) -> dict:
    return {
        "name": tokenizer.name,
        "file": tokenizer.path and "tokenizer.json",
        "sha256": tokenizer.sha256,
        "vocabulary": tokenizer.vocabulary,
    }


def describe_source(source: Source, sha256: str) -> dict:
    return source.origin | {"bytes": source.path.stat().st_size, "sha256": sha256}


def make(
    command: dict, layout: Layout, tokenizer: dict, sources: list[dict], writers: list[SplitWriter], replaced: int
) -> dict:
    shards = sorted((record for writer in writers for record in writer.complete), key=lambda record: record.name)
    return {
        "format": FORMAT,
        "name": command["name"],
        "token_type": layout.name,
        "tokenizer": tokenizer,
        "delimiter": command["delimiter"],
        "splits": {writer.split: writer.summary() for writer in writers if writer.complete},
        "replaced_characters": replaced,
        "sources": sources,
        "xxh64_block_bytes": BLOCK_BYTES,
        "shards": [{key: value for key, value in asdict(record).items() if value is not None} for record in shards],
        "command": command,
    }


def write(folder: Path, manifest: dict) -> None:
    write_whole(folder / FILE, (json.dumps(manifest, indent=1, ensure_ascii=False) + "\n").encode())


def read(folder: Path) -> dict | None:
    path = folder / FILE
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}\n  move it away") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f'{path}: no manifest of shards: expected "format": "{FORMAT}"\n  move it away')
    return manifest
