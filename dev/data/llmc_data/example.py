"""The first conversation of shards, as the template renders it, with what is learnt of it."""

from pathlib import Path

import numpy as np

from llmc_data.shards import open_shard

MOST = 1 << 16  # tokens that are looked at
SHOWN = 300  # characters of each part


def example(content: dict, folder: Path, tokenizer) -> list[str]:
    """Two lines: what is before the first answer that is learnt, and that answer; none if nothing is learnt."""
    shard = folder / content["shards"][0]["name"]
    tokens = open_shard(shard).array()[:MOST]
    learnt = np.flatnonzero(np.diff(open_shard(shard.with_suffix(".mask")).array()[:MOST], prepend=0, append=0))
    if not len(learnt):
        return []
    first, last = learnt[:2]
    if content["delimiter"]:
        place, ids = content["delimiter"]["place"], (content["delimiter"]["id"], content["delimiter"].get("end_id"))
        found = np.flatnonzero(np.isin(tokens[:first], [number for number in ids if number is not None]))
        begin = found[-1] + (place == "after") if len(found) else 0
    else:
        begin = 0
    before, answer = (shortened(tokenizer.decode(tokens[part].tolist())) for part in (slice(begin, first), slice(first, last)))
    return [f"a conversation: {before!r}", f"       learnt: {answer!r}"]


def shortened(text: str) -> str:
    """The text without its middle, if it is long."""
    return text if len(text) <= SHOWN else f"{text[: SHOWN // 2]} … {text[-SHOWN // 2 :]}"
