"""Folders of runs that never were, for the checks."""

import json
import math
import os

HOSTILE = ('</pre></script><script>window.stolen = 1</script><img src=x onerror="window.stolen = 2"> & "quoted" '
           "\u2028 é ✓")
HOSTILE_PLAN = "host <img src=x onerror='window.stolen=4'>  1.50 MiB\nactivations<img src=x>  1.50 GiB\n"
PLAN = "activations      1.50 GiB\ndevice, total    1.50 GiB\npinned host          0 B\n"


def write_run(folder, lines, config=None, memory=None):
    os.makedirs(folder)
    with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
        json.dump(config or {"model": "tiny", "lr": 1e-3}, file)
    if memory:
        with open(os.path.join(folder, "memory.txt"), "w", encoding="utf-8") as file:
            file.write(memory)
    with open(os.path.join(folder, "train.jsonl"), "w", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
    return folder


def long_run(folder, steps=20000, spike=12345):
    """Many steps, with one high loss that is skipped, one that is no number, a field that nobody knows, and a hostile sample."""
    lines = [{"step": 0, "val_loss": 6.0, "choices_acc": 0.25}, {"step": 0, "sample": HOSTILE}]
    for step in range(1, steps + 1):
        loss = 2 + 4 * math.exp(-step / 3000) + 0.1 * math.sin(step * 12.9898)
        loss = 50.0 if step == spike else "nan" if step == spike + 1 else loss
        lines.append({"step": step, "loss": loss, "grad_norm": 1 + math.cos(step), "lr": 1e-3 * (1 - step / steps / 2),
                      "step_ms": 500.0, "tokens_per_s": 2e6, "mfu": 0.41, "unheard_of": step})
        if step == spike:
            lines[-1]["skipped"] = "loss"
        if step % 500 == 0:  # the third of four ranks is slow in the second half
            times = [400.0, 404.0, 400.0 * (1.4 if step > steps / 2 else 1), 396.0]
            lines.append({"step": step, "computing_ms": times, "slowest": f"rank 2 ({HOSTILE})", "gpu_mhz": 1980})
        if step % 2000 == 0:
            lines.append({"step": step, "val_loss": 2.1 + 4 * math.exp(-step / 3000), "choices_acc": step / steps})
    lines.append({"step": steps, "sample": "line one\n<b>line two</b>"})
    config = {"model": "tiny<i>", "lr": 1e-3, "recompute": True, "note": HOSTILE}
    return write_run(folder, lines, config, HOSTILE_PLAN + PLAN)
