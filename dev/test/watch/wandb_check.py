"""Compares what wandb wrote offline with train.jsonl:  wandb_check.py RUN   (in RUN/wandb/offline-run-*)"""

import glob
import json
import os
import struct
import sys

from wandb.proto.wandb_internal_pb2 import Record

BLOCK = 32768


def records(path):
    """The records of a .wandb file: LevelDB's log format after a header of 7 bytes."""
    with open(path, "rb") as file:
        data = file.read()
    at, whole = 7, b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK  # padding
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # whole, or the last part of it
            yield Record.FromString(whole)
            whole = b""


def logged(run):
    """step of wandb → what was logged with it"""
    steps = {}
    for path in glob.glob(os.path.join(run, "wandb", "offline-run-*", "*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = {item.key or item.nested_key[0]: item.value_json for item in record.history.item}
                steps.setdefault(record.history.step.num, {}).update(items)
    return steps


def main():
    run = sys.argv[1]
    steps = logged(run)
    with open(os.path.join(run, "train.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    count = 0
    for number, line in enumerate(lines, 1):
        found = steps.pop(number)
        for name, value in line.items():
            if name != "sample":
                shown = float(json.loads(found[name]))
                assert shown == float(value), f"line {number}: {name} is {shown}, not {value}"
                count += 1
        assert ("sample" in line) == any(key.startswith("sample") for key in found), f"line {number}: sample"
    assert not {n: s for n, s in steps.items() if "step" in s}, f"more than train.jsonl has: {steps}"
    print(f"     {count} values of {len(lines)} lines")


if __name__ == "__main__":
    main()
