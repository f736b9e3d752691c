"""Compares PyTorch's loss on masked, packed shards with that of a training's first step, which saw all their windows.

    python dev/reference/compare_conversations.py DIR SHARDS T TRAIN.jsonl

DIR: the weights before that step.  SHARDS: a folder of dev/data's, whose concatenation llmc/data/sampler.h cuts into
windows of T tokens.  Exit code 1 beyond the limit.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

from make_dump import inputs_of, mean_loss, positions_in_documents

LIMIT = 1e-5  # fp32: the mean of some hundred losses, each off by some 1e-6


SEED = 1337


def mix(x: int) -> int:
    """SplitMix64's finalizer."""
    x = (x + 0x9E3779B97F4A7C15) % 2**64
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ x >> 27) * 0x94D049BB133111EB % 2**64
    return x ^ x >> 31


def windows_of(tokens: np.ndarray, learnt: np.ndarray, T: int) -> tuple[np.ndarray, np.ndarray]:
    """Inputs and labels (W, T) of the first epoch, in the order of the data."""
    n = len(tokens)
    windows = (n + T - 1) // T
    at = (np.arange(windows * T) + (mix(mix(SEED) ^ 1) * T >> 64)) % n
    labels = np.where((learnt[(at + 1) % n] == 1) & (at != n - 1), tokens[(at + 1) % n], -100)
    inputs = tokens[at]
    inputs[n:], labels[n:] = 0, -100
    return inputs.reshape(windows, T), labels.reshape(windows, T)


def main() -> None:
    folder, shards, T, log = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    disable_progress_bar()
    begin = json.loads((shards / "manifest.json").read_text())["delimiter"]["id"]
    paths = sorted(shards.glob("*_train_*.bin"))
    inputs, labels = windows_of(
        np.concatenate([np.fromfile(path, "<u2", offset=1024).astype(np.int32) for path in paths]),
        np.concatenate([np.fromfile(path.with_suffix(".mask"), "u1", offset=1024) for path in paths]), T)
    labels[labels == begin] = -100
    batch = {"input_ids": torch.from_numpy(inputs[None]),
             "position_ids": torch.from_numpy(positions_in_documents(inputs[None] == begin))}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(**inputs_of(model.config, batch, 0, torch.float32)).logits
    theirs = mean_loss(logits.double(), torch.from_numpy(labels)).item()
    ours = json.loads(log.read_text().splitlines()[0])["loss"]
    count, borders = int((labels >= 0).sum()), int((inputs[:, 1:] == begin).sum())
    print(f"{len(labels)} windows of {T} tokens, {count} of {labels.size} learnt, {borders} borders: "
          f"loss {ours:.6f}, PyTorch's off by {abs(ours - theirs):.1e} (limit {LIMIT:.0e})")
    sys.exit(not (abs(ours - theirs) <= LIMIT and 0 < count < labels.size and borders > 0))


if __name__ == "__main__":
    main()
