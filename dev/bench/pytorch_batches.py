"""The batches of dev/bench/pytorch_train.py: pairs (inputs, labels), int64 (B, T) each, of a step and a validation."""

import glob
import math
from pathlib import Path
from typing import Iterator

import torch
from safetensors.torch import load_file
from torch import Tensor

IGNORED = -100  # the label of a token that has none
SHARD_MAGIC, SHARD_HEADER = 20240520, 1024  # llm.c's shards of 2-byte tokens; bytes of their header


def read_tokens(pattern: str, device: str) -> Tensor:
    """The tokens of all files that match, in the order of their names, int64: of shards, or the bytes of a text."""
    parts = []
    for path in sorted(glob.glob(pattern)):
        data = bytearray(Path(path).read_bytes())
        if not path.endswith(".bin"):
            parts.append(torch.frombuffer(data, dtype=torch.uint8).long())
            continue
        magic, _, count = torch.frombuffer(data, dtype=torch.int32, count=3).tolist()
        if magic != SHARD_MAGIC:
            raise SystemExit(f"{path}: its magic number is {magic}, expected {SHARD_MAGIC}: a shard of 2-byte tokens")
        parts.append(torch.frombuffer(data, dtype=torch.uint16, offset=SHARD_HEADER, count=count).long())
    if not parts:
        raise SystemExit(f"no file matches {pattern}")
    return torch.cat(parts).to(device)


class RandomBatches:
    """Sequences from random places of a text, whose last tenth is held out, or of random tokens (text: None)."""

    def __init__(self, text: str | None, vocabulary: int, steps: int, batch: int, seq_len: int, lr: float,
                 device: str) -> None:
        data = read_tokens(text, device) if text else torch.randint(vocabulary, (1 << 22,), device=device)
        split = len(data) * 9 // 10
        self.windows, self.rest = data[:split].unfold(0, seq_len + 1, 1), data[split:]
        self.steps, self.batch, self.seq_len = steps, batch, seq_len
        rise = max(steps // 10, 1)
        self.rates = [lr * min((step + 1) / rise, 0.55 + 0.45 * math.cos(math.pi * step / steps))
                      for step in range(steps)]

    def of_step(self, step: int) -> tuple[Tensor, Tensor]:
        rows = self.windows[torch.randint(len(self.windows), (self.batch,), device=self.windows.device)]
        return rows[:, :-1], rows[:, 1:]

    def held_out(self) -> Iterator[tuple[Tensor, Tensor]]:
        count = (len(self.rest) - 1) // self.seq_len
        for rows in self.rest[: count * self.seq_len + 1].unfold(0, self.seq_len + 1, self.seq_len).split(self.batch):
            yield rows[:, :-1], rows[:, 1:]


class GivenBatches:
    """The sequences and rates of a file that dev/bench/batch_order wrote."""

    def __init__(self, path: Path, train: str, val: str | None, device: str) -> None:
        order = load_file(path, device=device)
        self.seq_len, *sizes = order["data"].tolist()
        self.train = read_tokens(train, device)
        if val:
            self.val = read_tokens(val, device)
        else:  # the last tenth of a text
            self.train, self.val = self.train.split([len(self.train) - len(self.train) // 10, len(self.train) // 10])
        if sizes != [len(self.train), len(self.val)]:
            raise SystemExit(f"{path}: it is of {sizes} tokens to train on and held out; the data has "
                             f"{[len(self.train), len(self.val)]}: name the data that it was written for")
        self.sequences, self.windows = order["sequences"], order["held_out"]
        self.rates = order["learning_rates"].tolist()
        self.steps, self.batch = self.sequences.shape[:2]

    def rows(self, data: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """places (B, 2): each row's first token, and how many it has."""
        start, count = places.unsqueeze(2).unbind(1)
        t = torch.arange(self.seq_len, device=data.device)
        at = (start + t) % len(data)
        inputs, labels = data[at], data[(at + 1) % len(data)]
        none = t >= count
        return inputs.masked_fill(none, 0), labels.masked_fill(none | (at == len(data) - 1), IGNORED)

    def of_step(self, step: int) -> tuple[Tensor, Tensor]:
        return self.rows(self.train, self.sequences[step])

    def held_out(self) -> Iterator[tuple[Tensor, Tensor]]:
        for places in self.windows.split(self.batch):
            yield self.rows(self.val, places)
