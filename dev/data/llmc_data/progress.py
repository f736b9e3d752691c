"""What is kept while shards are written, so that the same command goes on after a kill; and the bar."""

import fcntl
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

from tqdm import tqdm

from llmc_data.errors import DataError
from llmc_data.shards import write_whole

FILE = "progress.json"


@dataclass
class Progress:
    """Written between batches only: everything that it counts is in the shards, and on disk."""

    command: dict  # whatever decides about the bytes
    source: int = 0
    after: list | None = None  # where reading goes on in that source
    document: int = 0  # the next one's number
    replaced: int = 0  # characters that were not UTF-8
    counts: dict = field(default_factory=dict)  # of rows, as counts.py has them
    splits: dict = field(default_factory=dict)  # SplitWriter.save()
    read: dict | None = None  # BytesRead.saved()

    def save(self, folder: Path) -> None:
        write_whole(folder / FILE, json.dumps(asdict(self)).encode())


def load(folder: Path, command: dict) -> Progress | None:
    """What an earlier run of this command left; fails if another command left it."""
    progress = read(folder)
    if progress:
        refuse_other_command(folder, progress.command, command)
    return progress


def read(folder: Path) -> Progress | None:
    path = folder / FILE
    try:
        return Progress(**json.loads(path.read_bytes())) if path.exists() else None
    except (ValueError, TypeError):
        raise DataError(
            f"{path}: it does not say how far a command came: it was damaged, or is from elsewhere\n"
            "  give another --out, or remove it"
        ) from None


def refuse_other_command(folder: Path, earlier: dict, command: dict) -> None:
    # An option that is younger than what is there decided nothing about it.
    differing = [key for key in command if key in earlier and earlier.get(key) != json.loads(json.dumps(command[key]))]
    if differing:
        key = differing[0]
        raise DataError(
            f"{folder} was begun by another command: {key} was {earlier.get(key)}, now it is {command[key]}\n"
            "  give another --out, or --restart to delete what is there and begin anew"
        )


def lock(folder: Path):
    """Held as long as the file that is returned is open; ends with the process."""
    file = open(folder / ".lock", "w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DataError(f"another process is writing into {folder}\n  wait for it, or give another --out") from None
    return file


class Meter:
    """The bar: bytes of the sources, the rate in MB/s of text and in tokens/s, the time left."""

    def __init__(self, total: int, done: int):
        terminal = sys.stderr.isatty()
        layout = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}B/{total_fmt}B [{elapsed}, eta {remaining}{postfix}]"
        self.bar = tqdm(
            total=total, initial=done, unit="B", unit_scale=True, desc="prepare", bar_format=layout,
            mininterval=0.2 if terminal else 30, dynamic_ncols=True,
        )  # fmt: skip
        self.begin, self.text_bytes, self.tokens = time.monotonic(), 0, 0

    def update(self, source_bytes: int, text_bytes: int, tokens: int) -> None:
        self.text_bytes += text_bytes
        self.tokens += tokens
        self.bar.set_postfix_str(self.rate(), refresh=False)
        self.bar.update(source_bytes - self.bar.n)

    def rate(self) -> str:
        seconds = max(1e-9, time.monotonic() - self.begin)
        return f"{self.text_bytes / seconds / 1e6:.1f} MB/s, {self.tokens / seconds / 1e6:.2f}M tokens/s"

    def warn(self, message: str) -> None:
        self.bar.write(f"warning: {message}", file=sys.stderr)

    def close(self) -> None:
        self.bar.close()
