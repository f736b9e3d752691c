"""The runs of dev/bench/show: what each trains, and how its results get into a folder of small files."""

import json
import re
import shutil
import sys
import time
from pathlib import Path
from typing import NamedTuple

from training import (ROOT, Failed, TimeOver, commit, finish, gpu, kill_and_resume, lines_of, reached_by, sha256, spell, start,
                      words_of)

FIRST_STEPS = 5  # not timed, ours as those of pytorch_train.py: memory is allocated, kernels are loaded

class Run(NamedTuple):
    """One row of the tables. `seconds`: about how long it takes on an H100, with its start; `limit`: when it is ended."""

    name: str
    title: str
    proves: str  # a sentence
    options: dict  # of train_llama; for PyTorch's rows only the precision
    seconds: int
    limit: int
    ranks: int = 1
    pytorch: bool = False
    killed: bool = False  # halfway, and resumed
    exports: bool = False  # its weights, whose hash the result has


TWO_RANKS = {"zero-stage": 3, "fp8": "tensorwise", "fp8-all-gather": "on"}
RUNS = (
    Run("bf16", "bf16", "Learns real text in bf16.", {}, 45, 240, exports=True),
    Run("fp8-tensorwise", "FP8 tensorwise", "Learns real text in FP8 with a scale for each tensor.", {"fp8": "tensorwise"}, 45,
        240),
    Run("fp8-delayed", "FP8 delayed", "Learns real text in FP8 with scales of earlier steps.", {"fp8": "delayed"}, 40, 240),
    Run("pytorch", "PyTorch, bf16, compiled", "PyTorch learns the same text in bf16.", {}, 100, 400, pytorch=True),
    Run("bf16-killed", "bf16, killed halfway and resumed", "A kill and a resume change no bit.", {}, 55, 270, killed=True,
        exports=True),
    Run("fp8-gather", "FP8 tensorwise, two ranks, ZeRO-3, FP8 all-gather",
        "Learns real text in FP8 on two ranks, which gather weights in FP8.", TWO_RANKS, 200, 480, ranks=2),
    Run("pytorch-fp8", "PyTorch, FP8 tensorwise, compiled", "PyTorch learns the same text in FP8.", {"fp8": "tensorwise"}, 120, 400,
        pytorch=True),
)


class Size:
    """What all runs share: model, data and length. `small` is a rehearsal on any machine: a narrow model, few short steps."""

    def __init__(self, small, folder):
        self.small = small
        self.folder = folder / "small" if small else folder
        self.results, self.runs = self.folder / "results", self.folder / "runs"
        self.steps, self.quarter = (40, 10) if small else (2000, 500)
        data = folder / "data"
        self.order = (self.folder if small else data) / "order.safetensors"
        self.model = self.folder / "model.json" if small else ROOT / "dev/bench/llama-135m.json"
        self.train, self.val = ((ROOT / "dev/data/tinyshakespeare.txt", None) if small else
                                (data / "text_train_*.bin", data / "text_val_*.bin"))
        self.options = {
            "model": self.model, "train-data": self.train, "val-data": self.val, "seq-len": 64 if small else 1024,
            "global-batch": 8, "micro-batch": 8, "steps": self.steps, "lr": 1e-3 if small else 6e-4,
            "warmup-steps": self.steps // 20, "val-every": self.quarter, "val-tokens": 2048 if small else 0, "sample-every": 0,
            "seed": 1337}

    def prepare(self):
        """Writes what needs no data: the narrow model of a rehearsal."""
        self.runs.mkdir(parents=True, exist_ok=True)
        self.results.mkdir(exist_ok=True)
        if self.small:
            narrow = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2,
                      "intermediate_size": 256, "vocab_size": 256}
            config = json.loads((ROOT / "dev/bench/llama-135m.json").read_text())
            self.model.write_text(json.dumps({**config, **narrow}, indent=2) + "\n")

    def tokens_of_step(self):
        return self.options["seq-len"] * self.options["global-batch"]

    def result(self, name):
        """Returns what result.json says of a run that is whole, with its `lines`; None if there is none."""
        folder = self.results / name
        if not (folder / "result.json").is_file():
            return None
        return {**json.loads((folder / "result.json").read_text()), "lines": lines_of(folder)}


class Machine:
    """The program, Python with PyTorch, and the GPU, if the program is for one. The program's folder tells: cpu…, softgpu… or
    another name."""

    def __init__(self, program, python):
        self.program = program
        self.cpu, self.software = (program.parent.name.startswith(name) for name in ("cpu", "softgpu"))
        self.gpu = None if self.cpu or self.software else gpu.find()
        if not (self.cpu or self.software or self.gpu):
            sys.exit(f"show: nvidia-smi names no GPU, but {program} is built for one\n"
                     "  a build for a CPU or the software GPU has a folder whose name begins with cpu or softgpu")
        self.device = self.gpu.name if self.gpu else "the software GPU" if self.software else "a CPU"
        pytorch = ROOT / "build/pytorch/bin/python"
        self.python = python or ("python3" if self.gpu or not pytorch.exists() else pytorch)
        self.begin()

    def begin(self):
        """A run begins: nothing is noted of it yet."""
        self.states, self.looked = [], time.monotonic()

    def watch(self):
        """Notes clocks and power of the GPU every 5 seconds."""
        if self.gpu and time.monotonic() - self.looked > 5:
            self.states.append(self.gpu.state())
            self.looked = time.monotonic()

    def describe(self):
        state = self.states[len(self.states) // 2] if self.states else ""
        return {"device": self.device, "driver": self.gpu.driver if self.gpu else "", "state": state}


def our_command(machine, options):
    return [machine.program, *words_of(options)]


def trained(size, machine, run, out, log, limit):
    """Trains with our program. Returns (the command as a line, further facts for its result)."""
    options = {**size.options, "dtype": "bf16", **run.options, "micro-batch": size.options["global-batch"] // run.ranks,
               "export": "on" if run.exports else "off"}
    if run.killed:
        reached = kill_and_resume(our_command(machine, options), out, size.steps, log, limit, machine.watch)
        command = our_command(machine, {**options, "checkpoint-every": size.steps // 2, "checkpoint-async": "off"})
        return f"{spell(command)}  # killed and resumed by: dev/bench/show run {run.name}", {"killed_after": reached}
    options["out"] = out
    if run.ranks == 1:
        command = our_command(machine, options)
        finish([start(command, log)], log, limit, watch=machine.watch)
        return spell(command), {}
    options["checkpoint-on-signal"] = "off"  # it may be asked to stop early, and nothing resumes it
    if machine.cpu:
        command, variables = [ROOT / "scripts/run", "-n", run.ranks, *words_of(options)], {"LLMC_PROGRAM": machine.program}
        finish([start(command, log, **variables)], log, limit, stops=True)
        return spell(command, **variables), {}
    # Two processes on one GPU: NCCL takes them for two machines that are linked by sockets.
    command = our_command(machine, {**options, "rendezvous": out.with_suffix(".rendezvous")})
    shared = dict(WORLD_SIZE=run.ranks, LOCAL_RANK=0, LOCAL_WORLD_SIZE=1, NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE=1,
                  NCCL_NET="Socket")
    variables = [{**shared, "RANK": rank, "NCCL_HOSTID": f"rank{rank}"} for rank in range(run.ranks)]
    finish([start(command, log, **own) for own in variables], log, limit, stops=True, watch=machine.watch)
    return " & ".join(spell(command, **own) for own in variables), {}


def initial_weights(size, machine, log, limit):
    """The weights that all runs begin with, as an export: of a step whose learning rate is below each weight's last bit."""
    out = size.runs / "weights"
    shutil.rmtree(out, ignore_errors=True)
    one = {"steps": 1, "lr": 1e-30, "warmup-steps": None, "val-every": 0, "val-tokens": None, "micro-batch": 1, "global-batch": 1,
           "dtype": "fp32", "out": out}
    finish([start(our_command(machine, {**size.options, **one}), log)], log, limit)
    return out / "export"


def pytorch_command(size, machine, weights, out, *options):
    data = ["--train-data", size.train, *(["--val-data", size.val] if size.val else [])]
    return [machine.python, ROOT / "dev/bench/pytorch_train.py", "--config", weights / "config.json", "--weights", weights,
            "--batches", size.order, *data, "--log", out / "train.jsonl", *options]


def trained_by_pytorch(size, machine, run, out, log, limit):
    began = time.monotonic()
    weights = initial_weights(size, machine, log, limit)
    fast = ["--device", "cuda", "--attention", "fastest", "--compile"] if machine.gpu else []
    out.mkdir()
    fp8 = ["--fp8"] if "fp8" in run.options else []
    command = pytorch_command(size, machine, weights, out, "--steps", size.steps, "--val-every", size.quarter,
                              "--dtype", "bf16", *fast, *fp8)
    left = limit - (time.monotonic() - began)
    finish([start(command, log, OMP_WAIT_POLICY="passive")], log, left, watch=machine.watch)
    said = Path(log.name).read_text()
    return spell(command), {"tokens_per_s": float(re.search(r"^pytorch: ([0-9.]+) tok/s", said, re.M)[1]),
                            "pytorch": re.search(r"^pytorch (\S+: .*)", said, re.M)[1]}


def speed(lines, tokens):
    """Tokens a second of all but the first steps."""
    times = [line["step_ms"] for line in lines if "step_ms" in line][FIRST_STEPS:]
    return 1000 * tokens * len(times) / sum(times) if times else None


def do(run, size, machine, limit):
    """Trains for at most `limit` seconds, and writes the result's folder. Raises Failed. Two ranks on one GPU may have their
    whole limit and reach a quarter of the steps; other runs reach all."""
    out, began = size.runs / run.name, time.monotonic()
    size.prepare()
    shutil.rmtree(out, ignore_errors=True)
    machine.begin()
    with open(out.with_suffix(".txt"), "w+") as log:
        command, facts = (trained_by_pytorch if run.pytorch else trained)(size, machine, run, out, log, limit)
    lines = lines_of(out)
    validated = [line["step"] for line in lines if "val_loss" in line]
    reached = reached_by(out)
    least = size.quarter if run.ranks > 1 and limit >= run.limit else size.steps
    if reached < least or size.quarter not in validated:
        raise (TimeOver if run.ranks > 1 else Failed)(f"it ended after step {reached} of {size.steps}")
    weights = out / "export/model.safetensors"
    if weights.is_file():
        facts["sha256"] = sha256(weights)
    facts = {"tokens_per_s": speed(lines, size.tokens_of_step()), **facts}
    part = size.results / f"{run.name}.part"
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir()
    for name in ("train.jsonl", "run.json"):
        if (out / name).is_file():
            shutil.copyfile(out / name, part / name)
    shutil.copyfile(out.with_suffix(".txt"), part / "log.txt")
    result = {"name": run.name, "command": command, "commit": commit(), "date": time.strftime("%Y-%m-%d", time.gmtime()),
              "seconds": round(time.monotonic() - began, 1), "on_gpu": machine.gpu is not None, "small": size.small,
              **machine.describe(), **facts}
    (part / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    shutil.rmtree(size.results / run.name, ignore_errors=True)
    part.rename(size.results / run.name)
    shutil.rmtree(out)  # with its weights of hundreds of megabytes
    return result
