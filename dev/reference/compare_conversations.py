"""PyTorch's loss on masked, packed shards, beside that of a training's first step, which saw all their windows.

    python dev/reference/compare_conversations.py DIR SHARDS TRAIN.jsonl

DIR: the weights before that step.  SHARDS: a folder of dev/data's, each shard a window: T tokens and one more.
Exit code 1 beyond the limit.
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


def main() -> None:
    folder, shards, log = map(Path, sys.argv[1:])
    disable_progress_bar()
    begin = json.loads((shards / "manifest.json").read_text())["delimiter"]["id"]
    paths = sorted(shards.glob("*_train_*.bin"))
    tokens = [np.fromfile(path, "<u2", offset=1024).astype(np.int32) for path in paths]
    learnt = [np.fromfile(path.with_suffix(".mask"), "u1", offset=1024) for path in paths]
    windows = [n for n, t in enumerate(tokens) if len(t) == len(tokens[0])]  # the last shard may be shorter
    tokens, learnt = np.stack([tokens[n] for n in windows]), np.stack([learnt[n] for n in windows])

    labels = np.where((learnt[:, 1:] == 1) & (tokens[:, 1:] != begin), tokens[:, 1:], -100)
    batch = {"input_ids": torch.from_numpy(tokens[None, :, :-1].copy()),
             "position_ids": torch.from_numpy(positions_in_documents(tokens[None, :, :-1] == begin))}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.no_grad():
        logits = model(**inputs_of(batch, 0, torch.float32)).logits
    theirs = mean_loss(logits.double(), torch.from_numpy(labels)).item()
    ours = json.loads(log.read_text().splitlines()[0])["loss"]
    count, borders = int((labels >= 0).sum()), int((tokens[:, 1:-1] == begin).sum())
    print(f"{len(windows)} windows of {labels.shape[1]} tokens, {count} of {labels.size} learnt, {borders} borders: "
          f"loss {ours:.6f}, PyTorch's off by {abs(ours - theirs):.1e} (limit {LIMIT:.0e})")
    sys.exit(not (abs(ours - theirs) <= LIMIT and 0 < count < labels.size and borders > 0))


if __name__ == "__main__":
    main()
