"""A table that compares runs: nodes, GPUs, precision, speed and loss, as Markdown, CSV and a picture.

The speed is that of the last start of the program, without the steps of its warm-up: all tokens of these steps over
their time. Speeds are compared between runs of one kind: the same device, sequence length and number of GPUs.
"""

import argparse
import csv
import io
import os
import sys
from dataclasses import dataclass

from llmc_runs.bar_chart import Bar, bar_chart
from llmc_runs.files import write_whole
from llmc_runs.human import human_count
from llmc_runs.run import Run, RunError, command, open_runs

FACTS = {"first_step": int, "nodes": int, "ranks": int, "device": str, "gpu": bool, "dtype": str, "fp8": str,
         "seq_len": int, "micro_batch": int, "global_batch": int, "model_name": str, "parameters": int, "model": dict,
         "tokenizer": str, "data_tokens": int}
NOT_SHAPE = ("architectures", "dtype", "torch_dtype", "bos_token_id", "eos_token_id", "pad_token_id")
FEW_STEPS = 10  # a speed of fewer timed steps is a rough one
# Options that change neither the speed nor the loss, or that have a column of the table.
NOT_LISTED = ("out", "config", "quiet", "rendezvous", "resume", "dtype", "fp8", "fp8_all_gather", "seq_len", "model")


@dataclass
class Row:
    """One run of the table. The percentages are None where there is nothing to compare with."""

    run: Run
    facts: dict
    config: dict
    losses: dict  # step → loss of its batch; None where a step had nothing to learn
    held_out: dict  # step → held-out loss after so many steps
    timed: tuple  # the first and the last step whose time counts
    speed: float  # tokens/s per GPU
    beside_first: float | None = None  # more than the first run of its kind, in percent
    fp8_gain: float | None = None  # more than the first run of its kind in bf16, in percent
    scaling: float | None = None  # of the speed per GPU of the run of the same precision with the fewest GPUs, in percent

    def held_out_until(self, step):
        """(step, held-out loss) of the last validation after at most so many steps; (None, None) if there is none."""
        return max(((at, loss) for at, loss in self.held_out.items() if at <= step), default=(None, None))

    @property
    def timed_steps(self):
        return self.timed[1] - self.timed[0] + 1

    @property
    def precision(self):
        if self.facts["fp8"] == "off":
            return self.facts["dtype"]
        return f"FP8 {self.facts['fp8']}" + " + all-gather" * bool(self.config.get("fp8_all_gather"))

    @property
    def kind(self):
        return self.facts["device"], self.facts["seq_len"], self.facts["ranks"]


def steps(text):
    """A number of steps, 0 or more."""
    if int(text) < 0:
        raise ValueError
    return int(text)


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/compare",
        description="Compares the speed and the loss of runs, finished or under way. Prints a table in Markdown.")
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folder of a run, e.g. runs/latest")
    parser.add_argument("--warm-up", type=steps, default=10, metavar="STEPS",
                        help="steps at each run's start whose time does not count (default: %(default)s)")
    parser.add_argument("--step", type=steps, metavar="N",
                        help="compare the loss of step N (default: the last step that all runs have)")
    parser.add_argument("--csv", metavar="FILE", help="also write the table as CSV, with all digits")
    parser.add_argument("--picture", metavar="FILE.svg", help="also draw the speeds")
    return parser.parse_args()


def read_row(run, warm_up):
    facts = run.facts()
    if not facts:
        raise RunError(f"{run.folder} has no run.json, which tells the model, the number of ranks and the device: "
                       "an older version of the program wrote this run\n  train it again, or leave it out")
    for name, kind in FACTS.items():
        value = facts.get(name)
        if not isinstance(value, kind) or (kind is int and value < (name != "first_step")):
            raise RunError(f'{run.folder}/run.json: "{name}" is {value!r}, expected a value as train_llama writes it\n'
                           "  train it again, or leave it out")
    lines = run.read()
    trained = [line for line in lines if "step_ms" in line.scalars and "tokens_per_s" in line.scalars]
    started = [line for line in trained if line.step > facts["first_step"]]
    if not started:
        raise RunError(f"{run.log} has no step after step {facts['first_step']}, where the run started\n"
                       "  wait for its first steps, or leave it out")
    timed = [line for line in started if line.step > facts["first_step"] + warm_up]
    if not timed:
        raise RunError(f"{run.name} has {len(started)} steps since its start, and the warm-up takes {warm_up}: no step "
                       f"is left to time\n  train longer, or shorten the warm-up: --warm-up {len(started) - 1}")
    seconds = [line.scalars["step_ms"] / 1e3 for line in timed]
    if not all(second > 0 for second in seconds):
        raise RunError(f"{run.log}: the step_ms of a step is not above 0: {min(seconds) * 1e3:g}")
    tokens = sum(line.scalars["tokens_per_s"] * second for line, second in zip(timed, seconds))
    held_out = {line.step: line.scalars["val_loss"] for line in lines if "val_loss" in line.scalars}
    return Row(run, facts, run.config(), {line.step: line.scalars.get("loss") for line in trained}, held_out,
               (timed[0].step, timed[-1].step), tokens / sum(seconds) / facts["ranks"])


# ---- what may stand in one table -------------------------------------------------------------------------------------

def require_one(rows, what, key):
    """All rows must have the same key, which is a dict; the error says what differs, and how to compare apart."""
    groups = {}
    for row in rows:
        groups.setdefault(repr(sorted(key(row).items())), []).append(row)
    if len(groups) == 1:
        return
    first, second = [group[0] for group in groups.values()][:2]
    names = [name for name in {**key(first), **key(second)} if key(first).get(name) != key(second).get(name)]
    differ = "; ".join(f"{name} is {key(first).get(name)} in {first.run.name}, {key(second).get(name)} in "
                       f"{second.run.name}" for name in names)
    apart = "\n".join("    scripts/compare " + " ".join(os.path.relpath(row.run.folder) for row in group)
                      for group in groups.values())
    raise RunError(f"the runs have different {what}, so their figures say nothing about each other\n  {differ}\n"
                   f"  compare them apart:\n{apart}")


def shape(row):
    return {name: value for name, value in row.facts["model"].items() if name not in NOT_SHAPE}


def tokenizer(row):
    return {"the tokenizer (bytes, or the checksum of tokenizer.json)": row.facts["tokenizer"] or "not known"}


def loss_step(rows, asked):
    """The step whose loss is compared: it must be in all runs."""
    def spans():
        return "; ".join(f"{row.run.name} has steps {min(row.losses)} to {max(row.losses)}" for row in rows)

    if asked is not None:
        lack = [row.run.name for row in rows if asked not in row.losses]
        if lack:
            raise RunError(f"--step {asked} is not in {', '.join(lack)}: {spans()}\n  name a step that all runs have")
        return asked
    common = set.intersection(*(set(row.losses) for row in rows))
    if not common:
        raise RunError(f"no step is in all runs: {spans()}\n  train the short ones longer, or compare them apart")
    return max(common)


# ---- figures ---------------------------------------------------------------------------------------------------------

def percent(row, base):
    return 100 * (row.speed / base.speed - 1)


def set_percentages(rows):
    for row in rows:
        kind = [other for other in rows if other.kind == row.kind]
        if kind[0] is not row:
            row.beside_first = percent(row, kind[0])
        wide = next((other for other in kind if other.precision == "bf16"), None)
        if row.facts["fp8"] != "off" and wide:
            row.fp8_gain = percent(row, wide)
        alike = [other for other in rows if other.kind[:2] == row.kind[:2] and other.precision == row.precision]
        fewest = min(alike, key=lambda other: other.facts["ranks"])
        if fewest.facts["ranks"] < row.facts["ranks"]:
            row.scaling = 100 * row.speed / fewest.speed


def fp8_text(gain):
    return f"{abs(gain):.1f}% {'slower' if gain < 0 else 'faster'}"


def optional(value, form):
    return "–" if value is None else form(value)


def loss_text(loss):
    return f"{loss:.4f}"


def held_out_text(row, step, with_step):
    at, loss = row.held_out_until(step)
    return optional(loss, loss_text) + (f" (step {at})" if with_step and at is not None else "")


def speed_text(speed):
    return f"{speed:,.0f}" if speed >= 1000 else f"{speed:.4g}"


def tokens_per_step(row):
    return row.facts["seq_len"] * row.facts["global_batch"]


def differs(rows, value):
    return len({value(row) for row in rows}) > 1


# ---- Markdown, CSV, picture ------------------------------------------------------------------------------------------

def markdown(rows, step, warm_up):
    unit = "GPU" if all(row.facts["gpu"] for row in rows) else "rank"
    measured = {row.held_out_until(step)[0] for row in rows} - {None}
    held_out = f"held-out loss after {min(measured)} steps" if len(measured) == 1 else "held-out loss"
    columns = {
        "run": lambda row: row.run.name.replace("|", "\\|"),
        "nodes": lambda row: f"{row.facts['nodes']}",
        f"{unit}s": lambda row: f"{row.facts['ranks']}",
        "precision": lambda row: row.precision,
        "device": lambda row: row.facts["device"],
        "tokens per sequence": lambda row: f"{row.facts['seq_len']}",
        "tokens per step": lambda row: human_count(tokens_per_step(row)),
        f"tokens/s/{unit}": lambda row: speed_text(row.speed),
        "against first of its kind": lambda row: optional(row.beside_first, lambda value: f"{value:+.1f}%"),
        "FP8 against bf16": lambda row: optional(row.fp8_gain, fp8_text),
        f"against fewest {unit}s": lambda row: optional(row.scaling, lambda value: f"{value:.1f}%"),
        f"training loss of step {step}": lambda row: optional(row.losses[step], loss_text),
        held_out: lambda row: held_out_text(row, step, with_step=len(measured) > 1),
    }
    if not measured:
        del columns[held_out]
    common = [name for name in ("device", "tokens per sequence", "tokens per step")
              if not differs(rows, columns[name])]
    lead = ", ".join(f"{name}: {columns[name](rows[0])}" for name in common)
    facts = rows[0].facts
    text = [f"**{facts['model_name']}**, {human_count(facts['parameters'])} parameters{'; ' * bool(lead)}{lead}.", "",
            *grid([name for name in columns if name not in common], columns, rows), "",
            f"tokens/s/{unit}: tokens over time of a run's steps after its warm-up of {warm_up} "
            f"step{'s' * (warm_up != 1)}. Kind: the same device, tokens per sequence and number of {unit}s. "
            f"Against fewest {unit}s: percent of the speed per {unit} that the same precision has on the fewest {unit}s. "
            f"Training loss: of the batch of step {step} alone. Held-out loss: the last one measured until then."]
    few = [f"{row.run.name} ({row.timed_steps})" for row in rows if row.timed_steps < FEW_STEPS]
    if few:
        text += ["", f"Fewer than {FEW_STEPS} steps were timed, so the speed is a rough one: {', '.join(few)}."]
    if differs(rows, tokens_per_step):
        text += ["", "The runs take different numbers of tokens per step: their losses are not after as many tokens."]
    listed = [f"- {name}: {values}" for name, values in other_options(rows)]
    if listed:
        text += ["", "The runs also differ in:", "", *listed]
    return "\n".join(text) + "\n"


def grid(names, columns, rows):
    return [f"| {' | '.join(cells)} |" for cells in
            [names, ["---"] * len(names), *([columns[name](row) for name in names] for row in rows)]]


def other_options(rows):
    """(option, "4 (run a, run b), 2 (run c)") for each option that differs and has no column."""
    known = [{**row.config, **{name: row.facts[name] for name in ("micro_batch", "global_batch", "data_tokens")}}
             for row in rows]
    for name in dict.fromkeys(name for options in known for name in options):
        runs = {}
        for row, options in zip(rows, known):
            runs.setdefault(str(options.get(name, "none")) or "none", []).append(row.run.name)
        if len(runs) > 1 and name not in NOT_LISTED:
            spelled = "tokens of the training data" if name == "data_tokens" else f"`--{name.replace('_', '-')}`"
            yield spelled, ", ".join(f"{value} ({', '.join(names)})" for value, names in runs.items())


def csv_text(rows, step):
    """All digits; an empty cell where there is nothing to compare with."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", "model", "device", "nodes", "ranks", "precision", "seq_len", "global_batch", "micro_batch",
                     "first_timed_step", "last_timed_step", "tokens_per_s_per_rank", "percent_beside_first",
                     "percent_fp8_beside_bf16", "percent_of_fewest_ranks", "loss_step", "loss", "held_out_step", "held_out_loss"])
    for row in rows:
        facts = row.facts
        writer.writerow([row.run.name, facts["model_name"], facts["device"], facts["nodes"], facts["ranks"],
                         row.precision, facts["seq_len"], facts["global_batch"], facts["micro_batch"], *row.timed,
                         row.speed, row.beside_first, row.fp8_gain, row.scaling, step, row.losses[step],
                         *row.held_out_until(step)])
    return text.getvalue()


def picture(rows):
    unit = "GPU" if all(row.facts["gpu"] for row in rows) else "rank"
    precisions = list(dict.fromkeys(row.precision for row in rows))
    kinds = list(dict.fromkeys(row.kind for row in rows))
    bars = []
    for row in sorted(rows, key=lambda row: kinds.index(row.kind)):
        count = row.facts["ranks"]
        gain = optional(row.beside_first, lambda value: f"   {value:+.1f}%").strip("–")
        bars.append(Bar(f"{row.run.name}: {count} {unit}{'s' * (count > 1)}, {row.precision}", row.speed,
                        speed_text(row.speed) + gain, precisions.index(row.precision), row.kind))
    return bar_chart(f"{rows[0].facts['model_name']}: tokens/s per {unit}", bars)


def write(path, text, option):
    try:
        write_whole(path, text)
    except OSError as error:
        raise RunError(f"{option} {path}: cannot write it: {error.strerror}\n  name another place") from None


def main():
    arguments = parse_arguments()
    if arguments.picture and not arguments.picture.endswith(".svg"):
        raise RunError(f"--picture {arguments.picture}: the picture is SVG\n  name it FILE.svg; browsers show it, and "
                       "rsvg-convert or Inkscape make a PNG of it")
    rows = [read_row(run, arguments.warm_up) for run in open_runs(arguments.runs)]
    require_one(rows, "models", shape)
    require_one(rows, "tokenizers", tokenizer)
    step = loss_step(rows, arguments.step)
    set_percentages(rows)
    if arguments.csv:
        write(arguments.csv, csv_text(rows, step), "--csv")
    if arguments.picture:
        write(arguments.picture, picture(rows), "--picture")
    sys.stdout.write(markdown(rows, step, arguments.warm_up))


if __name__ == "__main__":
    command(main, interrupted=130)
