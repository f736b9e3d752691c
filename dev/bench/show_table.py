"""The tables and the picture of dev/bench/show, of the results that are there."""

import math
import statistics

from line_chart import Curve, line_chart
from show_runs import RUNS

NOT_YET = "not yet run on a GPU"


def smoothed(size, result):
    """[(step, mean of the losses of the steps up to it)], over a fortieth of the run."""
    losses = [(line["step"], line["loss"]) for line in result["lines"] if "loss" in line]
    width = size.steps // 40
    return [(losses[i + width - 1][0], statistics.fmean(loss for _, loss in losses[i: i + width]))
            for i in range(0, len(losses) - width + 1)]


def cell(value, form):
    return "–" if value is None else format(value, form)


def share(value, base, form="+.2%"):
    return "–" if value is None or base is None else format(value / base - 1, form)


def row(size, run, result, bf16):
    """One line of the table. bf16: our result in bf16 on the same GPU, or None."""
    quarters = [size.quarter * i for i in range(1, 5)]
    if result is None:
        return f"| {run.title} | {NOT_YET} |" + " |" * (len(quarters) + 3)
    at = dict(smoothed(size, result))
    held_out = {line["step"]: line["val_loss"] for line in result["lines"] if "val_loss" in line}
    last = max(held_out)
    base = {line["step"]: line["val_loss"] for line in bf16["lines"] if "val_loss" in line} if bf16 else {}
    if run.ranks > 1:
        speed, ratio = "two ranks share the GPU", "–"
    else:
        speed = cell(result["tokens_per_s"], ",.0f")
        ratio = cell(result["tokens_per_s"] / bf16["tokens_per_s"] if bf16 else None, ".2f")
    stopped = "" if last == size.steps else f" (after {last} steps)"
    return (f"| {run.title} | {speed} | {ratio} | " + " | ".join(cell(at.get(step), ".4f") for step in quarters) +
            f" | {held_out[last]:.4f}{stopped} | {share(held_out[last], base.get(last))} |")


def loss_table(size, results):
    quarters = " | ".join(f"loss after {size.quarter * i}" for i in range(1, 5))
    lines = [f"| run | tokens/s | of bf16's | {quarters} | held-out loss at the end | against bf16 |", "|---" * 9 + "|"]
    for run in RUNS:
        if not run.killed:
            result, bf16 = results.get(run.name), results.get("bf16")
            same = result and bf16 and bf16["device"] == result["device"]
            lines.append(row(size, run, result, bf16 if same else None))
    return lines


def hash_table(results):
    """Compares the bits of the run that was killed with those of the one that was left alone."""
    alone, killed = results.get("bf16"), results.get("bf16-killed")
    lines = ["| bf16, SHA-256 of `export/model.safetensors` | |", "|---|---|",
             f"| left alone | {'`' + alone['sha256'] + '`' if alone else NOT_YET} |"]
    title = f"killed after step {killed['killed_after']}, resumed" if killed else "killed halfway, resumed"
    lines.append(f"| {title} | {'`' + killed['sha256'] + '`' if killed else NOT_YET} |")
    if alone and killed:
        other = [key for key in ("commit", "device", "driver") if alone[key] != killed[key]]
        verdict = "one hash" if alone["sha256"] == killed["sha256"] else "**two hashes**"
        lines.append(f"| | {verdict}{'; the runs differ in ' + ', '.join(other) if other else ''} |")
    return lines


def origins(results):
    """Names the source of each result: a phrase for each machine and commit."""
    groups = {}
    for name, result in results.items():
        key = result["device"], result["driver"], result["commit"], result["date"]
        groups.setdefault(key, []).append((name, result))
    for (device, driver, commit, date), members in groups.items():
        states = [result["state"] for _, result in members if result["state"]]
        yield (f"{', '.join(name for name, _ in members)}: {device}{', driver ' + driver if driver else ''}"
               f"{' (' + states[0] + ')' if states else ''}, {date}, commit {commit}")
    for name, result in results.items():
        if "pytorch" in result:
            yield f"{name}: PyTorch {result['pytorch']}"


def tables(size, results):
    """Markdown."""
    lines = []
    if size.small:
        lines += ["**A rehearsal at small sizes: these figures say nothing about speed or loss.**", ""]
    lines += loss_table(size, results)
    lines += ["", f"The loss after a step is the mean of the {size.steps // 40} steps up to it.", "", *hash_table(results)]
    sources = list(origins(results))
    if sources:
        lines += ["", "*`dev/bench/show run`: " + "; ".join(sources) + ".*"]
    return "\n".join(lines) + "\n"


def draw(size, results):
    """Two SVGs, or None for each that has no curve: of the smoothed training losses, and of their distances from ours in bf16. The
    first twentieth of the run, which is far above the rest, and losses that are not finite are left out."""
    points = {}
    for name, result in results.items():
        shown = smoothed(size, result)[:: max(1, size.steps // 400)]
        points[name] = {step: loss for step, loss in shown if step >= size.steps // 20 and math.isfinite(loss)}
    bf16 = points.get("bf16")
    losses, distances = [], []
    for color, run in enumerate(RUNS):
        if not points.get(run.name) or run.killed:
            continue
        steps, values = zip(*points[run.name].items())
        losses.append(Curve(run.name, steps, values, color, dashed=run.pytorch))
        if bf16 and run.name != "bf16":
            percent = {step: 100 * (value / bf16[step] - 1) for step, value in points[run.name].items() if step in bf16}
            distances.append(Curve(run.name, [*percent], [*percent.values()], color, dashed=run.pytorch))
    of = "a narrow model, a rehearsal" if size.small else f"135M parameters, means over {size.steps // 40} steps"
    against = f"Training loss against ours in bf16, of {of}"
    return (line_chart(f"Training loss of {of}", "step", "nats a token", losses) if losses else None,
            line_chart(against, "step", "percent above it", distances) if distances else None)
