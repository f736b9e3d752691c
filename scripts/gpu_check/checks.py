"""Each check is a function that takes a Job (jobs.py). order.py has the order in which they run."""

import gzip
import json
import os
import shutil
import sys
import time
from pathlib import Path

import figures
from jobs import failed, last_line, skipped

ROOT = Path(__file__).resolve().parents[2]
ONE_B, EIGHT_B = "dev/bench/llama3.2-1b.json", "dev/bench/llama3-8b.json"
QUIET = ("--val-every", 0, "--sample-every", 0, "--export", "off", "--checkpoint-minutes", 0)
sys.path.append(str(ROOT / "dev/bench"))  # which lists what it measures
import peers_rows  # noqa: E402
import show_runs  # noqa: E402

PEERS = peers_rows.ROWS
SHOW = show_runs.RUNS


# ---- before anything runs ----------------------------------------------------------------------------------------------


def needs(job):
    """Names everything that is missing at once, not one thing per build."""
    missing = []
    # The software GPU takes the libraries of both builds.
    for device in ["cuda"] * (job.machine.gpu is not None) + ["cpu"] * job.machine.rehearsal:
        arch = {"ARCH": job.machine.gpu.arch} if device == "cuda" else {}
        said = job.run("scripts/doctor", "configure", code=None, DEVICE=device, **arch)
        if "Cannot build" in said:
            missing.append(said[said.find("Cannot build") :].strip())
        elif device not in said.split():  # it prints the variant that it has configured
            missing.append(f"scripts/doctor: {last_line(said)}")
    free = shutil.disk_usage(ROOT).free / 2**30
    if free < 4:
        missing.append(f"{free:.1f} GiB of disk are free under {ROOT}: the build takes 4")
    if not job.machine.rehearsal and job.machine.torch is None:
        job.say("python3 has no torch with transformers: nothing will be compared with PyTorch")
    if missing:
        failed("; ".join(missing))


def build(job):
    build = job.machine.programs.relative_to(ROOT)
    way = ("DEVICE=cuda", f"ARCH={job.machine.gpu.arch}") if job.machine.gpu else ("DEVICE=cpu",)
    if job.machine.gpu and job.machine.rehearsal:
        way += ("SOFTGPU=ptx", f"BUILD={build}")
    kernels = [f"kernels/{path.stem}" for path in sorted((ROOT / "dev/kernels").glob("*.cu"))]
    goals = [build / name for name in (*kernels, "bench/train", "bench/host_copies", "bench/batch_order", "test/comm")]
    job.run("make", *way, f"-j{os.cpu_count()}", "programs", *goals)


def llama_1b(job):
    """Returns the config of Llama-3.2-1B. In a rehearsal it is much narrower; its heads have the same 64 elements."""
    if not job.machine.rehearsal:
        return ONE_B
    narrow = dict(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1)
    config = dict(json.loads(Path(ONE_B).read_text()), **narrow, intermediate_size=256, vocab_size=256)
    path = job.folder("narrow.json")
    path.write_text(json.dumps(config))
    return path


# ---- right numbers -----------------------------------------------------------------------------------------------------


def kernel_check(name):
    def does(job):
        job.run(job.machine.programs / "kernels" / name, "check")

    return does


def parity(dump):
    config = json.loads((dump / "config.json").read_text())
    head_size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    fp8 = "quantization" in json.loads((dump / "recipe.json").read_text())

    def does(job):
        program, way = job.machine.programs / "test_llama", job.machine.detours.attention(head_size)
        if not way:
            job.run(program, dump)
            return
        for dtype in ("fp32", "bf16") + (("fp8",) if fp8 else ()):
            job.run(program, dump, "--dtype", dtype, *(() if dtype == "fp32" else way))

    return does


def quickstart(job):
    out = job.folder("quickstart")
    job.run(job.machine.programs / "train_llama", "--steps", 20 if job.machine.rehearsal else 200, "--out", out)
    losses = figures.column(out, "loss")
    if not float(losses[-1]) < float(losses[0]):
        failed(f"the loss went from {losses[0]} to {losses[-1]}")
    job.figure("quickstart, last loss", float(losses[-1]), "nats")


def small_training(job, name, *options, dtype="bf16"):
    """Trains the bundled model for a few steps and returns its losses, as texts with all their digits."""
    out, short = job.folder(name), ("--seq-len", 32) if job.machine.rehearsal else ()
    command = (job.machine.programs / "train_llama", "--steps", 6, *QUIET, "--dtype", dtype, "--out", out, *short, *options)
    (job.run_ranks if "--rendezvous" in options else job.run)(*command)
    return figures.column(out, "loss")


def graphs(*options, ranks=1, head_size=32):
    """Checks that a step launched as one graph has the bits of a step enqueued operation by operation."""

    def does(job):
        batch = ("--micro-batch", 4, "--global-batch", 8 * ranks, *options, *job.machine.detours.attention(head_size))
        share = ("--rendezvous", "RENDEZVOUS") if ranks > 1 else ()
        off, on = (small_training(job, way, *batch, *share, "--cuda-graphs", way) for way in ("off", "on"))
        if off != on:
            failed(f"other losses with --cuda-graphs on: {on} instead of {off}")

    return does


def graphs_on_tensor_cores(job):
    length = () if job.machine.rehearsal else ("--seq-len", 512)
    graphs("--model", llama_1b(job), "--layers", 2, *length, head_size=64)(job)


def tuned(job):
    """Checks that a run which reads tuned choices from a file computes as the run which found them."""
    found = small_training(job, "found", "--tune-products")
    again = small_training(job, "again", "--tuning", job.folder("found") / "tuning.json")
    if found != again:
        failed(f"--tuning has the losses {again}, --tune-products {found}")


# ---- several ranks on one GPU ------------------------------------------------------------------------------------------


def collectives(job):
    job.run_ranks(job.machine.programs / "test/comm")


def fails_clearly(text, *scenario):
    """Checks that both ranks end with an error, and that one of them says why."""

    def does(job):
        said = job.run_ranks(job.machine.programs / "test/comm", *scenario, code="failure")
        if text not in said:
            failed(f'comm {" ".join(map(str, scenario))} does not say "{text}"; {last_line(said)}')

    return does


# Nats by which the losses of two ranks may differ from those of one: sums have another order, and with tensor and context
# parallelism partial sums are rounded to bf16. On a CPU they differ by up to 1e-6 and 1.5e-3; those of another seed by 0.1.
ROUNDING = {"fp32": 1e-4, "bf16": 1e-2}


def two_ranks(*way):
    def does(job):
        for dtype, limit in ROUNDING.items():
            batch = ("--global-batch", 16, "--micro-batch", 8)
            alone = small_training(job, f"one-{dtype}", *batch, dtype=dtype)
            shared = small_training(job, f"two-{dtype}", *batch, "--rendezvous", "RENDEZVOUS", *way, dtype=dtype)
            difference = figures.largest_difference(alone, shared)
            job.say(f"in {dtype} the losses of two ranks differ from one rank's by {difference:.1e}, limit {limit:g}")
            if not difference <= limit:
                failed(f"in {dtype} losses differ from one rank's by {difference:.1e}, more than {limit:g}")

    return does


def ours(job, head_size):
    """Returns the option by which a script hands the ways round broken parts on to each run of the trainer."""
    return f"--ours={' '.join(job.machine.detours.attention(head_size))}"


# ---- speed -------------------------------------------------------------------------------------------------------------


def one_b(*options, title):
    """Trains Llama-3.2-1B on random tokens: tokens/s and a step by class of work, with the prediction."""

    def does(job):
        program, gpu, small = job.machine.programs / "bench/train", job.machine.gpu, job.machine.rehearsal
        whole = small or gpu.gib > 70  # GiB: 8 sequences of 4096 tokens take 61
        batch = ("--micro-batch", 8, "--global-batch", 8) if whole else ("--fit", "--micro-batch", 1, "--global-batch", 1)
        length, steps = (64, ("--soak", 2, "--steps", 3)) if small else (4096, ("--soak", 3, "--steps", 10))
        shape = ("--model", llama_1b(job), "--seq-len", length, *batch, *job.machine.detours.attention(64), *options)
        said = job.run(program, *shape, *steps)
        known = [name for name in ("H100", "H200", "A100", "B200") if gpu and name in gpu.name]
        predicts = whole and known and "--tune-products" not in options
        figures.training(job, title, said, job.run(program, "--predict", "--gpu", known[0], *shape) if predicts else "")

    return does


def peer(row):
    """Measures one row of dev/bench/peers; peers.tsv in the tar has the figures of all rows, for its --take."""

    def does(job):
        if row.in_turn and job.machine.torch is None:
            skipped("python3 has no torch with transformers")
        small = ("--small",) if job.machine.rehearsal else ()
        said = job.run("dev/bench/peers", row.name, *small, "--build", job.machine.programs, "--results", job.keep("peers.tsv"))
        published = ", ".join(f"{peer.project} {peer.rate:.0f} on {peer.on}" for peer in row.peers if peer.rate)
        job.say(f"published: {published or 'nothing, the peer ran here'}")
        job.figure(row.name, figures.number(r"^ok .*: ([\d.]+\s?[kM]?) tokens/s", said), "tokens/s")
        if row.in_turn:
            job.figure(f"  {row.name}", figures.number(r"([\d.]+) times as fast as PyTorch", said), "times PyTorch's rate", least=1.0)

    return does


def against_pytorch(title, least, *shape):
    """Runs both programs in turn, in the same minutes; PyTorch is compiled and takes its fastest attention."""

    def does(job):
        if job.machine.torch is None:
            skipped("python3 has no torch with transformers")
        size = (*shape, "--compiled", "--steps", 25, "--rounds", 2)
        said = job.run("dev/bench/pytorch_ratio", "--program", job.machine.programs / "train_llama", ours(job, 64), *size)
        job.figure(title, figures.number(r"([\d.]+) times as fast as PyTorch", said), "times PyTorch's rate", least=least)

    return does


def attention_rates(job):
    if job.machine.torch is None:
        skipped("python3 has no torch: no flash and no cuDNN to compare with")
    kernels = ("mma",) if job.machine.detours.attention(128) else ("mma", "hopper")
    said = job.run("dev/bench/attention", job.machine.programs, *kernels, code=None)
    lines = [line for line in said.splitlines() if "TFLOP/s; limit" in line]
    if job.machine.hopper() and "hopper" in kernels and len(lines) != 4:
        failed(f"{len(lines)} of 4 rates: {last_line(said)}")
    for line in lines:
        least, goal = figures.number(r"limit (\d+)", line), figures.number(r"goal (\d+)", line)
        title = "attention " + line.split(":")[0]
        job.figure(
            title, figures.number(r": (\d+) TFLOP/s", line), "TFLOP/s", figures.number(r"predicted (\d+)", line), least
        )
        job.say(f"{title}: the goal is {goal:.0f}")


def show(run):
    """One run of dev/bench/show; kept/show in the tar has its results, a folder each, for build/show/results."""

    def does(job):
        if run.pytorch and job.machine.torch is None:
            skipped("python3 has no torch with transformers")
        folder = job.kept / "rehearsal" if job.machine.rehearsal else ROOT / "build/show"
        if not job.machine.rehearsal and not (folder / "data/order.safetensors").is_file():
            skipped("build/show/data is not there: dev/bench/show prepare makes it, also on another machine")
        small = ("--small",) if job.machine.rehearsal else ()
        seconds = max(job.deadline - time.monotonic(), 1) if job.deadline < float("inf") else 24 * 3600
        job.run("dev/bench/show", "run", run.name, *small, "--program", job.machine.programs / "train_llama", "--folder", folder,
                "--seconds", seconds, **job.machine.detours.nccl())
        results = folder / ("small/results" if small else "results")
        for name in ("result.json", "train.jsonl"):
            shutil.copyfile(results / run.name / name, job.keep(f"show/{run.name}/{name}"))
        lines = [json.loads(line) for line in (results / run.name / "train.jsonl").read_text().splitlines()]
        result = json.loads((results / run.name / "result.json").read_text())
        if run.ranks == 1:
            job.figure(f"{run.name}, real text", result["tokens_per_s"], "tokens/s")
        job.figure(f"  {run.name}, held-out loss", [line["val_loss"] for line in lines if "val_loss" in line][-1], "nats")
        if run.killed:
            require_one_hash(result, results / "bf16/result.json")

    return does


def require_one_hash(killed, of_alone):
    """Compares the weights after a kill with those of the run that was left alone, if that ran here, by the same program."""
    alone = json.loads(of_alone.read_text()) if of_alone.is_file() else None
    if not alone or any(alone.get(name) != killed.get(name) for name in ("device", "driver", "commit")):
        skipped("the run that is left alone (show/bf16) has no result of this GPU, driver and commit to compare with")
    if killed["sha256"] != alone["sha256"]:
        failed(f"the weights have the hash {killed['sha256']} after a kill, and {alone['sha256']} of the run that was left alone")


def kernel_bench(name):
    def does(job):
        said = job.run(job.machine.programs / "kernels" / name, "bench")
        for what in ("copy", "product"):
            rate = figures.number(rf"^measured: a {what} of .* runs at ([\d.]+) G", said)
            if rate and name == "rmsnorm":
                job.figure(f"largest {what}", rate, "GB/s" if what == "copy" else "GFLOP/s")

    return does


def trace(job):
    """Keeps a trace of the streams of a step, for ui.perfetto.dev."""
    file = job.folder("trace.json")
    shape = ("--model", llama_1b(job), "--seq-len", 64 if job.machine.rehearsal else 2048, "--micro-batch", 4)
    job.run(
        job.machine.programs / "train_llama",
        "--steps",
        4,
        *QUIET,
        *shape,
        "--global-batch",
        4,
        *job.machine.detours.attention(64),
        "--trace",
        file,
        "--out",
        job.folder("run"),
    )
    with open(file, "rb") as plain, gzip.open(job.keep("trace.json.gz"), "wb") as packed:
        shutil.copyfileobj(plain, packed)


def host_copies(job):
    said = job.run(job.machine.programs / "bench/host_copies")
    for what in ("to the host", "from the host", "both at once"):
        job.figure(
            f"copies {what}", figures.number(rf"^{what}\s+([\d.]+) GB/s", said), "GB/s", None if job.machine.rehearsal else 55
        )  # what the planner reckons with


def memory_policies(job):
    small = ("--model", llama_1b(job), "--layers", 2, "--seq-len", 64, "--steps", 4, "--dtype", "bf16")
    job.run(
        "python3",
        "-u",
        "dev/bench/memory_policies",
        "--program",
        job.machine.programs / "train_llama",
        *(small if job.machine.rehearsal else ()),
        ours(job, 128),
    )


def ladder(job):
    shape = ("--seq-len", 64, "--micro-batch", 4, "--steps", 20)
    if not job.machine.rehearsal:
        shape = ("--seq-len", 4096, "--micro-batch", 2, "--steps", 60)
    program = job.machine.programs / "train_llama"
    job.run("dev/bench/ladder", "--program", program, "--model", llama_1b(job), *shape, ours(job, 64))
