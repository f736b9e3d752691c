"""Which documents are held out, and the shards of one split, one after the other."""

import bisect
import os
from dataclasses import asdict, dataclass
from pathlib import Path

from llmc_data.errors import DataError
from llmc_data.shards import MASK, Layout, PartialFile, partial_name, sync_folder

TRAIN, HELD_OUT = "train", "val"
FIRST_NUMBER = {HELD_OUT: 0, TRAIN: 1}  # as llm.c counts: the held-out shard is number 0


def is_held_out(document: int, fraction: float) -> bool:
    """A function of the document's number alone (splitmix64, the first number of the sequence seeded with it)."""
    z = (document + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ z >> 27) * 0x94D049BB133111EB % 2**64
    return (z ^ z >> 31) < fraction * 2**64


@dataclass
class Tokens:
    """What a batch adds to a split."""

    tokens: bytes  # as in the shard
    mask: bytes  # a byte a token, or nothing
    starts: list[int]  # where documents begin, in tokens
    text_bytes: int  # of the text that the tokens stand for, in UTF-8
    unlearnt: int = 0  # documents of which the mask lets no token be learnt


@dataclass
class ShardRecord:
    """What the manifest says about a shard."""

    name: str
    split: str
    tokens: int
    documents: int  # that begin in it
    sha256: str
    mask: dict | None  # name, learnt (tokens), sha256, xxh64
    xxh64: list[str] | None = None  # of each block; none: xxhash was not there


class SplitWriter:
    """Writes NAME_SPLIT_000000.bin, …, each of shard_tokens tokens but the last, and their masks."""

    def __init__(self, folder: Path, name: str, split: str, layout: Layout, shard_tokens: int, masked: bool):
        self.folder, self.name, self.split = folder, name, split
        self.layout, self.shard_tokens, self.masked = layout, shard_tokens, masked
        self.complete: list[ShardRecord] = []
        self.tokens = self.documents = self.text_bytes = self.unlearnt = 0
        self.shard: PartialFile | None = None
        self.mask: PartialFile | None = None
        self.shard_documents = self.shard_learnt = 0

    def shard_path(self) -> Path:
        number = FIRST_NUMBER[self.split] + len(self.complete)
        return self.folder / f"{self.name}_{self.split}_{number:06d}.bin"

    def append(self, part: Tokens) -> bool:
        """Returns whether a shard was completed: then the caller saves its progress and calls publish()."""
        width, total, done, first_start = self.layout.width, len(part.tokens) // self.layout.width, 0, 0
        complete = len(self.complete)
        while done < total:
            if self.shard is None:
                self.open_shard()
            end = min(total, done + self.shard_tokens - self.shard.tokens)
            self.shard.write(part.tokens[done * width : end * width])
            if self.mask:
                self.mask.write(part.mask[done:end])
                self.shard_learnt += part.mask.count(1, done, end)
            next_start = bisect.bisect_left(part.starts, end)
            self.shard_documents += next_start - first_start
            done, first_start = end, next_start
            if self.shard.tokens == self.shard_tokens:
                self.finish_shard()
        self.tokens += total
        self.documents += len(part.starts)
        self.text_bytes += part.text_bytes
        self.unlearnt += part.unlearnt
        return len(self.complete) > complete

    def open_shard(self, tokens: int = 0) -> None:
        path = self.shard_path()
        if path.exists():
            raise DataError(f"{path} is there already, from elsewhere\n  give another --out or --name, or remove it")
        self.shard = PartialFile(path, self.layout, tokens, self.masked)
        self.mask = PartialFile(path.with_suffix(".mask"), MASK, tokens) if self.masked else None

    def finish_shard(self) -> None:
        """The shard is complete and on disk, under its name with .partial."""
        if self.shard is None:
            return
        shard, mask, name = self.shard, None, self.shard_path().name
        if self.mask:
            mask = {"name": self.mask.path.name, "learnt": self.shard_learnt} | self.mask.finish()
        counts = {"split": self.split, "tokens": shard.tokens, "documents": self.shard_documents}
        self.complete.append(ShardRecord(name, mask=mask, **counts, **shard.finish()))
        self.shard = self.mask = None
        self.shard_documents = self.shard_learnt = 0

    def publish(self) -> None:
        """Gives complete shards their final names, a mask before its shard; also those that a kill kept from theirs."""
        for record in self.complete:
            names = [record.mask["name"], record.name] if record.mask else [record.name]
            for path in [self.folder / name for name in names]:
                if partial_name(path).exists():
                    os.replace(partial_name(path), path)
        sync_folder(self.folder)

    def summary(self) -> dict:
        """What the manifest says about the split."""
        content = {"tokens": self.tokens, "documents": self.documents, "text_bytes": self.text_bytes}
        if self.masked:
            content["learnt"] = sum(record.mask["learnt"] for record in self.complete)
            content["documents_not_learnt"] = self.unlearnt
        return content

    def save(self) -> dict:
        """What restore() needs; the tokens that it counts are on disk."""
        for file in (self.shard, self.mask):
            if file:
                file.sync()
        return {
            "complete": [asdict(record) for record in self.complete],
            "tokens": self.tokens,
            "documents": self.documents,
            "text_bytes": self.text_bytes,
            "unlearnt": self.unlearnt,
            "shard_tokens": self.shard.tokens if self.shard else 0,
            "shard_documents": self.shard_documents,
            "shard_learnt": self.shard_learnt,
        }

    def restore(self, saved: dict) -> None:
        self.complete = [ShardRecord(**record) for record in saved["complete"]]
        self.tokens, self.documents, self.text_bytes = saved["tokens"], saved["documents"], saved["text_bytes"]
        self.unlearnt = saved.get("unlearnt", 0)
        if saved["shard_tokens"]:
            self.open_shard(saved["shard_tokens"])
        self.shard_documents, self.shard_learnt = saved["shard_documents"], saved["shard_learnt"]
