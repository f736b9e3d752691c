"""The parts of a report that are text: final figures, options, samples, memory. Everything is escaped here."""

import re
from html import escape

import numpy as np

from llmc_runs.charts import COLORS
from llmc_runs.human import human_bytes, human_count, human_duration
from llmc_runs.spikes import farthest

BYTES = {unit: 1024**power for power, unit in enumerate(("B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"))}


def table(head, rows, css=""):
    """Cells are HTML. The first column names the row."""
    def row(cells, tag="td"):
        return f"<tr><th>{cells[0]}</th>" + "".join(f"<{tag}>{cell}</{tag}>" for cell in cells[1:]) + "</tr>"

    body = "".join(map(row, rows))
    return (f'<div class="scroll"><table class="{css}"><thead>{row(head, "th")}</thead>'
            f"<tbody>{body}</tbody></table></div>")


def run_name(number, name):
    """A run's name with the colour of its curves."""
    return f'<span class="run" style="--color:{COLORS[number % len(COLORS)]}">{escape(name)}</span>'


def run_names(pages):
    return [run_name(number, page.run.name) for number, page in enumerate(pages)]


# ---- final figures ---------------------------------------------------------------------------------------------------

def final_figures(pages):
    """A row a run; columns that no run has are left out."""
    columns = {}
    for number, page in enumerate(pages):
        for title, cell in figures(page).items():
            columns.setdefault(title, {})[number] = cell
    rows = [[name] + [cells.get(number, "–") for cells in columns.values()]
            for number, name in enumerate(run_names(pages))]
    return table(["run", *columns], rows, "figures") + note_about_tokenizers(pages)


def note_about_tokenizers(pages):
    """What cannot be compared between runs of different tokenizers."""
    checksums = {page.run.facts().get("tokenizer") for page in pages} - {None, ""}
    if len(checksums) < 2:
        return ""
    return ("<p>The runs have different tokenizers: their losses in nats a token are not comparable. "
            "Those in bits a byte are, if both tokenizers keep the bytes of the text.</p>")


def figures(page):
    """What a run came to: title → HTML."""
    last = page.lines[-1]
    cells = {"state": '<span class="live">running</span>' if page.live else "ended", "steps": f"{last.step}",
             "tokens": human_count(last.tokens), "training time": human_duration(last.seconds)}
    if values := page.values("loss"):
        tail = values[-max(1, len(values) // 20):]
        cells["training loss"] = f"{np.mean(tail):.4f}{of_last(len(tail))}"
    if values := page.values("val_loss"):
        steps = [line.step for line in page.lines if "val_loss" in line.scalars]
        best = int(np.nanargmin(values)) if np.isfinite(values).any() else 0
        cells["held-out loss"] = f"{values[-1]:.4f}"
        cells["best held-out"] = f'{values[best]:.4f}<small>step {steps[best]}</small>'
    if values := page.values("tokens_per_s"):
        cells["tokens/s"] = f"{human_count(np.median(values))}<small>median</small>"
    if values := page.values("mfu"):
        cells["MFU"] = f"{np.median(values) * 100:.1f}%<small>median</small>"
    if total := dict(plan_rows(page.memory_plan)).get("device, total"):
        cells["device memory"] = human_bytes(total)
    if peaks := [(what, found) for what, name in (("loss", "loss"), ("norm", "grad_norm"))
                 if (found := farthest(page.lines, name))]:
        steps = ", ".join(str(step) for _, (step, _) in peaks)
        cells["highest above the last 128 steps"] = ", ".join(
            f"{what} {above:.1f} σ" for what, (_, above) in peaks) + f"<small>step {steps}</small>"
    if len(stages := page.run.facts().get("stages", [])) > 1:
        cells["stages"] = "".join(
            f"<div>{escape(stage['name'] or 'the first')}, from step {stage['first_step'] + 1}"
            f"<small>{escape(', '.join(stage['changed']))}</small></div>" for stage in stages)
    if skipped := [line.step for line in page.lines if line.skipped]:
        last = ("…, " if len(skipped) > 8 else "") + ", ".join(map(str, skipped[-8:]))
        cells["skipped"] = f"{len(skipped)}<small>step {last}</small>"
    if left_out := page.run.facts().get("left_out"):
        ranges = [f"{first} to {last}" for bad in left_out for first, last in bad["samples"]]
        steps = ", ".join(str(bad["step"]) for bad in left_out[-8:])
        cells["left out"] = f"samples {', '.join(ranges[-8:])}<small>step {steps}</small>"
    if wrong := [line.step for line in page.lines if not all(map(np.isfinite, line.scalars.values()))]:
        cells["not finite"] = f'<span class="bad">step {wrong[0]}</span><small>{len(wrong)} lines</small>'
    return cells


def of_last(count):
    return f"<small>mean of the last {count}</small>" if count > 1 else ""


# ---- options ---------------------------------------------------------------------------------------------------------

def options(pages):
    """A table of the options that differ; below it, folded, those that all runs share."""
    names = list(dict.fromkeys(name for page in pages for name in page.config))
    differ = [name for name in names if len({option_text(page, name) for page in pages}) > 1]
    html = ""
    if differ:
        html = table(["option", *run_names(pages)], [option_row(pages, name) for name in differ])
    elif len(pages) > 1:
        html = "<p>All options are the same.</p>"
    common = [name for name in names if name not in differ]
    if not common:
        return html
    rows = [option_row(pages[:1], name) for name in common]
    what = "options that all runs share" if len(pages) > 1 else "options"
    return html + f"<details><summary>{len(common)} {what}</summary>{table(['option', 'value'], rows)}</details>"


def option_text(page, name):
    value = page.config.get(name, "–")
    return {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value) or "none"


def option_row(pages, name):
    return [f"<code>--{escape(name.replace('_', '-'))}</code>"] + [escape(option_text(page, name)) for page in pages]


# ---- samples ---------------------------------------------------------------------------------------------------------

def samples(pages):
    """All samples, of which page.js shows those of one step; none if no run has any."""
    steps = sorted({line.step for page in pages for line in page.lines if line.sample is not None})
    if not steps:
        return ""
    cards = ""
    for number, page in enumerate(pages):
        texts = "".join(f'<pre data-step="{line.step}">{escape(line.sample.strip())}</pre>'
                        for line in page.lines if line.sample is not None)
        if texts:
            name = run_name(number, page.run.name)
            cards += f'<article class="sample"><h3>{name}<small></small></h3>{texts}</article>'
    return (f'<label class="slider">after step <output></output><input type="range" id="sample-step" min="0" '
            f'max="{len(steps) - 1}" value="{len(steps) - 1}" data-steps="{steps}"></label>'
            f'<div class="samples">{cards}</div>')


# ---- memory ----------------------------------------------------------------------------------------------------------

def memory(pages):
    """The plans of memory: a bar a run, all on one scale, and the figures; none if no run has a plan."""
    plans = [dict(plan_rows(page.memory_plan)) for page in pages]
    names = list(dict.fromkeys(name for plan in plans for name in plan))
    if not names:
        return ""
    sums = ("device, total", "device and reserve", "host, total", "pinned host")
    parts = [name for name in names if name not in sums and not name.startswith("host ")]
    parts.sort(key=lambda name: -max(plan.get(name, 0) for plan in plans))
    shade = {name: f"--share:{i / max(1, len(parts) - 1):.2f}" for i, name in enumerate(parts)}
    largest = max(sum(plan.get(name, 0) for name in parts) for plan in plans) or 1
    bars = ""
    for name, plan in zip(run_names(pages), plans):
        pieces = "".join(f'<i style="{shade[part]};width:{100 * plan[part] / largest:.3f}%" '
                         f'title="{escape(part)}: {human_bytes(plan[part])}"></i>' for part in parts if part in plan)
        bars += f'<div class="plan">{name}<div class="bar">{pieces}</div></div>'
    rows = [[f'<span class="part" style="{shade[part]}">{escape(part)}</span>' if part in shade else f"<b>{escape(part)}</b>"] +
            [human_bytes(plan[part]) if part in plan else "–" for plan in plans]
            for part in parts + [name for name in names if name not in parts]]
    return bars + table(["planned for", *run_names(pages)], rows, "numbers")


def plan_rows(text):
    """(what, bytes) of each line of a memory plan: "activations      33.1 MiB"."""
    for line in text.splitlines():
        what, _, figure = line.rpartition("  ")
        found = re.fullmatch(r"(\d+(?:\.\d+)?) (\w+)", figure)
        if found and found[2] in BYTES and what and not what[0].isspace():
            yield what.rstrip(), float(found[1]) * BYTES[found[2]]
