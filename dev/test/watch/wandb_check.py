"""Compares what was logged with train.jsonl, each line once and in order:

    wandb_check.py RUN            what wandb wrote offline, in all of RUN/wandb/offline-run-*
    wandb_check.py RUN HISTORY    what wandb_server.py was told
"""

import json
import os
import sys

from llmc_runs.wandb_files import history


def offline(run):
    """(step of wandb, {name: value}) of all calls."""
    folder = os.path.join(run, "wandb")
    with open(os.path.join(folder, "run_id"), encoding="ascii") as file:
        for step, items in history(folder, file.read()):
            yield step, {name: json.loads(value) for name, value in items.items()}


def online(path):
    with open(path, encoding="utf-8") as file:
        for items in map(json.loads, file):
            yield items["_step"], items


def main():
    run, *told = sys.argv[1:]
    logged = [(step, items) for step, items in (online(*told) if told else offline(run)) if "step" in items]
    with open(os.path.join(run, "train.jsonl"), encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    steps = [step for step, _ in logged]
    assert steps == list(range(1, len(lines) + 1)), f"lines logged: {steps}; train.jsonl has {len(lines)}"
    count = 0
    for number, (line, (_, found)) in enumerate(zip(lines, logged), 1):
        for name, value in line.items():
            if name not in ("sample", "time"):
                shown = float(found[name])
                assert shown == float(value), f"line {number}: {name} is {shown}, not {value}"
                count += 1
        assert abs(found["_timestamp"] - line.get("time", found["_timestamp"])) < 1e-3, f"line {number}: time"
        assert ("sample" in line) == any(key.startswith("sample") for key in found), f"line {number}: sample"
    print(f"     {count} values of {len(lines)} lines")


if __name__ == "__main__":
    main()
