"""llm.c's shards: 256 little-endian int32 (magic, version, number of tokens, zeros), then the tokens.

A file under its final name is complete: it is written as NAME.partial, synced, and renamed.
"""

import hashlib
import io
import os
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from llmc_data.errors import DataError

try:
    import xxhash
except ImportError:  # a Python of the user's own
    xxhash = None

HEADER_BYTES = 1024
MAX_TOKENS = 2**31 - 1  # the header counts in int32
READ_BYTES = 1 << 20
BLOCK_BYTES = 1 << 22  # of a file, with a checksum of its own; a multiple of READ_BYTES


@dataclass(frozen=True)
class Layout:
    name: str
    magic: int
    version: int
    dtype: np.dtype

    @property
    def width(self) -> int:
        return self.dtype.itemsize

    def header(self, tokens: int, masked: bool = False) -> bytes:
        """`masked`: a mask belongs to the shard, and without it every token would be learnt."""
        return struct.pack("<256i", self.magic, self.version, tokens, int(masked), *[0] * 252)


UINT16 = Layout("uint16", 20240520, 1, np.dtype("<u2"))
UINT32 = Layout("uint32", 20240801, 7, np.dtype("<u4"))
MASK = Layout("mask", 20241121, 1, np.dtype("u1"))  # 1: the token is learnt; 0: its label is ignored


def layout_for(vocabulary: int) -> Layout:
    if vocabulary > 2**31:
        raise DataError(
            f"the tokenizer's vocabulary has {vocabulary} entries\n"
            f"  expected at most {2**31}: shards hold uint32 tokens, which the trainer reads as int32"
        )
    return UINT16 if vocabulary <= 2**16 else UINT32


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def checksums_of(path: Path) -> dict:
    """What the manifest lists of a file: the sha256 of all of it, and the XXH64 of each block, by which the trainer
    verifies a block when it first reads from it."""
    digest, blocks, size = hashlib.sha256(), [], 0
    with open(path, "rb") as file:
        while chunk := file.read(READ_BYTES):
            digest.update(chunk)
            if xxhash and size % BLOCK_BYTES == 0:
                blocks.append(xxhash.xxh64())
            if xxhash:
                blocks[-1].update(chunk)
            size += len(chunk)
    sums = {"sha256": digest.hexdigest()}
    return sums | {"xxh64": [block.hexdigest() for block in blocks]} if xxhash else sums


def sync_folder(folder: Path) -> None:
    """What was renamed in the folder is on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Writes a small file so that at any moment it is the old one or the new one."""
    partial = path.with_name(path.name + ".partial")
    with open(partial, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(partial, path)
    sync_folder(path.parent)


def write_all(file: io.RawIOBase, data: bytes, path: Path) -> None:
    """Writes all of it to an unbuffered file; an error names the file."""
    view = memoryview(data)
    try:
        while view:
            view = view[file.write(view) :]
    except OSError as error:
        error.filename = str(path)
        raise


class PartialFile:
    """A shard or mask that is being written, under its name with .partial."""

    def __init__(self, path: Path, layout: Layout, tokens: int = 0, masked: bool = False):
        """Goes on after the first `tokens` of what is there; what comes after them is dropped."""
        self.path, self.layout, self.tokens, self.masked = path, layout, tokens, masked
        self.partial = partial_name(path)
        self.file = open(self.partial, "r+b" if tokens else "wb", buffering=0)
        size = HEADER_BYTES + tokens * layout.width
        if tokens and os.fstat(self.file.fileno()).st_size < size:
            raise DataError(
                f"{self.partial}: expected at least {size} bytes: it was changed; begin anew with --restart"
            )
        self.file.truncate(size)
        self.file.seek(size)

    def write(self, data: bytes) -> None:
        write_all(self.file, data, self.partial)
        self.tokens += len(data) // self.layout.width

    def sync(self) -> None:
        os.fsync(self.file.fileno())

    def finish(self) -> dict:
        """Writes the header; everything is on disk, still under the name with .partial. Returns the checksums."""
        self.file.seek(0)
        write_all(self.file, self.layout.header(self.tokens, self.masked), self.partial)
        self.sync()
        self.file.close()
        return checksums_of(self.partial)


def partial_name(path: Path) -> Path:
    return path.with_name(path.name + ".partial")


@dataclass(frozen=True)
class Shard:
    """A file of tokens or of a mask whose header and size are right."""

    path: Path
    layout: Layout
    tokens: int

    def array(self) -> np.ndarray:
        """The tokens, mapped: read where they are looked at."""
        return np.memmap(self.path, dtype=self.layout.dtype, mode="r", offset=HEADER_BYTES, shape=(self.tokens,))


def open_shard(path: Path) -> Shard:
    """Checks header and size."""
    size = path.stat().st_size
    if size < HEADER_BYTES:
        raise DataError(
            f"{path}: {size} bytes\n  expected a header of {HEADER_BYTES}: the copy was cut short, or is none"
        )
    with open(path, "rb") as file:
        magic, version, tokens = struct.unpack("<3i", file.read(12))
    for layout in (UINT16, UINT32, MASK):
        if magic == layout.magic:
            break
    else:
        known = ", ".join(f"{layout.magic} ({layout.name})" for layout in (UINT16, UINT32, MASK))
        raise DataError(f"{path}: magic {magic}\n  expected {known}: this is no shard")
    if version != layout.version:
        raise DataError(f"{path}: version {version} of magic {magic}\n  expected {layout.version}")
    expected = HEADER_BYTES + tokens * layout.width
    if tokens < 1 or size != expected:
        reason = "the copy was cut short" if size < expected else "something was added"
        raise DataError(
            f"{path}: header says {tokens} tokens, the file has {size} bytes\n"
            f"  expected {expected}: {reason}; write it again"
        )
    return Shard(path, layout, tokens)
