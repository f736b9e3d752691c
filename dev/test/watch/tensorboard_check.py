"""Compares the event files of a run with its train.jsonl, by TensorBoard's own reader.

    tensorboard_check.py live RUN           waits for the first values of a run under way, and says how late they are
    tensorboard_check.py equal RUN [DIR]    all scalars and samples, each once, in order, with the time of their lines; DIR:
                                            RUN/tensorboard
    tensorboard_check.py tokens RUN DIR     the same, with tokens in the place of steps
    tensorboard_check.py served RUN URL     the server's scalars of RUN
"""

import json
import os
import sys
import time
import urllib.request

import numpy as np
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

SOON = 5.0  # seconds


def truth(run, by_tokens=False):
    """({scalar: [(step, value)]}, [(step, sample)]) of the whole lines; `by_tokens`: with the tokens of the last step
    instead of its number."""
    scalars, samples, tokens = {}, [], 0
    with open(os.path.join(run, "train.jsonl"), encoding="utf-8") as file:
        for line in file.read().rpartition("\n")[0].split("\n"):
            fields = json.loads(line)
            step = fields.pop("step")
            tokens = fields.pop("tokens", tokens)
            step = tokens if by_tokens else step
            fields.pop("time", None)
            for name, value in fields.items():
                if name == "sample":
                    samples.append((step, value))
                else:
                    # TensorBoard keeps float32: the nearest to what stands in train.jsonl.
                    scalars.setdefault(name, []).append((step, float(np.float32(float(value)))))
    return scalars, samples


def written(folder):
    """The same from the event files, the texts of tag "options", and the times of the losses."""
    events = EventAccumulator(folder, size_guidance={"scalars": 0, "tensors": 0}, purge_orphaned_data=False)
    events.Reload()
    tags = events.Tags()
    scalars = {name: [(e.step, e.value) for e in events.Scalars(name)] for name in tags["scalars"]}
    texts = {name: [(e.step, e.tensor_proto.string_val[0].decode()) for e in events.Tensors(name)]
             for name in tags["tensors"]}
    samples = [(step, "\n".join(line[4:] for line in text.split("\n"))) for step, text in texts.pop("sample", [])]
    return scalars, samples, texts, [e.wall_time for e in events.Scalars("loss")] if "loss" in scalars else []


def times(run):
    """When the lines with a loss were written."""
    with open(os.path.join(run, "train.jsonl"), encoding="utf-8") as file:
        lines = map(json.loads, file.read().rpartition("\n")[0].split("\n"))
        return [line["time"] for line in lines if "loss" in line and "time" in line]


def tokens(run, folder):
    equal(run, folder, by_tokens=True)


def equal(run, folder=None, by_tokens=False):
    expected, expected_samples = truth(run, by_tokens)
    scalars, samples, texts, wall_times = written(folder or os.path.join(run, "tensorboard"))
    assert list(scalars) == list(expected) or set(scalars) == set(expected), f"{set(scalars) ^ set(expected)}"
    for name, points in expected.items():
        found = scalars[name]
        assert [p[0] for p in found] == [p[0] for p in points], f"{name}: steps {found[:5]}… of {len(found)}"
        np.testing.assert_array_equal([p[1] for p in found], [p[1] for p in points], err_msg=name)  # nan equals nan
    assert samples == expected_samples, "samples"
    if not by_tokens:
        known = times(run)  # some tests add lines without
        np.testing.assert_allclose(wall_times[:len(known)], known, rtol=0, atol=1e-3, err_msg="times of the losses")
    assert {name: len(text) for name, text in texts.items()} == {"options": 1, "memory plan": 1}, f"{texts.keys()}"
    with open(os.path.join(run, "config.json"), encoding="utf-8") as file:
        assert json.loads(texts["options"][0][1]) == json.load(file), "options"
    print(f"     {sum(map(len, expected.values()))} values of {', '.join(expected)}; {len(samples)} samples")


def live(run):
    """How long a line that is there now takes to be in the event files."""
    end = time.monotonic() + 60
    while "loss" not in truth(run)[0] and time.monotonic() < end:
        time.sleep(0.05)
    step, begin = truth(run)[0]["loss"][-1][0], time.monotonic()
    while True:
        folder = os.path.join(run, "tensorboard")
        if os.path.isdir(folder) and any(s == step for s, _ in written(folder)[0].get("loss", [])):
            break
        assert time.monotonic() < begin + 30, f"step {step} never came"
        time.sleep(0.05)
    late = time.monotonic() - begin
    print(f"     step {step} was there after {late:.1f} s, the follower's start included")
    assert late < SOON, "too late"


def served(run, url):
    url = f"{url.rstrip('/')}/data/plugin/scalars"
    name, (_, points) = os.path.basename(run), max(truth(run)[0].items())
    end = time.monotonic() + 30
    while True:
        with urllib.request.urlopen(f"{url}/tags") as answer:
            tags = json.load(answer).get(name, {})
        if set(tags) == set(truth(run)[0]):
            break
        assert time.monotonic() < end, f"served: {tags.keys()}"
        time.sleep(0.3)
    with urllib.request.urlopen(f"{url}/scalars?run={name}&tag=loss") as answer:
        found = [(step, float(np.float32(value))) for _, step, value in json.load(answer)]
    assert found == truth(run)[0]["loss"], "loss"
    print(f"     {len(tags)} scalars, {len(found)} losses, {len(points)} of the last")


if __name__ == "__main__":
    {"live": live, "equal": equal, "tokens": tokens, "served": served}[sys.argv[1]](*sys.argv[2:])
