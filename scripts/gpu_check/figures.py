"""Reads figures from the output of the programs and from the files of a run."""

import json
import re
from pathlib import Path

# Classes of work that llmc/train/roofline.h sorts a step into, as the table of bench/train names them.
CLASSES = (
    "products",
    "products in FP8",
    "attention",
    "memory-bound passes",
    "optimizer",
    "other",
    "communication",
    "copies to the host and back",
    "idle",
)
UNITS = {"": 1, "k": 1e3, "M": 1e6}


def number(pattern, text):
    """Returns the first group of the pattern as a number (12.5k is 12500), or None if the text has none."""
    match = re.search(pattern, text, re.M)
    if not match:
        return None
    digits, unit = re.fullmatch(r"([\d.]+)\s?([kM]?)", match[1]).groups()
    return float(digits) * UNITS[unit]


def microseconds_by_class(text):
    """Returns microseconds per token of each class of work, from the last table of bench/train."""
    rows = {}
    for name in CLASSES:
        columns = re.findall(rf"^{name}\s+(?:\d+\s+)?[\d.]+ ms\s+[\d.]+%\s+([\d.]+)", text, re.M)
        if columns:
            rows[name] = float(columns[-1])
    return rows


def training(job, title, said, predicted):
    """Adds the figures of one bench/train, with those of its --predict (empty: the model does not know this GPU)."""
    rate = number(r"steps: .*?: ([\d.]+\s?[kM]?) tokens/s a rank", said)
    model = predicted[predicted.find("\npredicted: ") :] if "\npredicted: " in predicted else ""
    job.figure(title, rate, "tokens/s", number(r"^predicted: ([\d.]+\s?[kM]?) tokens/s", model))
    job.figure(f"  {title}, MFU", number(r"^MFU ([\d.]+)%", said), "%", number(r"^predicted: .*?MFU ([\d.]+)%", model))
    expected = microseconds_by_class(model)
    for name, value in microseconds_by_class(said).items():
        job.figure(f"  {title}, {name}", value, "us a token", expected.get(name))


def column(folder, key):
    """Returns one value of each step of a run, as text from train.jsonl: the same text means the same bits."""
    lines = [json.loads(line, parse_float=str) for line in Path(folder, "train.jsonl").read_text().splitlines()]
    return [line[key] for line in lines if key in line]


def largest_difference(a, b):
    """Returns the largest difference of two columns, or NaN if their lengths differ or are 0."""
    if not a or len(a) != len(b):
        return float("nan")
    return max(abs(float(x) - float(y)) for x, y in zip(a, b))
