"""Runs the checks of order.py one after the other and keeps the result of each. scripts/gpu_check.sh tells how to use it."""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import gpu
import page
from jobs import Ended, Job
from order import CHECKS, ROOT, Detours
from records import Records, sources

WORK = ROOT / "build/gpu_check"
CLOSING = 5  # seconds to write the page


class Machine:
    """All checks share the GPU, the build, PyTorch, and the ways round broken parts.

    Without a GPU this is a rehearsal, in which no speed means anything: on the software GPU if nvcc is here, else in the
    CPU's build (gpu is None then).
    """

    def __init__(self):
        found = gpu.find()
        self.rehearsal = found is None
        self.gpu = found or gpu.software()
        self.programs = ROOT / "build" / ("cuda" if found else "softgpu" if self.gpu else "cpu")
        self.state = found.state() if found else ""  # of the GPU, while it was last busy
        asks = "from importlib.metadata import version; version('transformers'); print(version('torch'))"  # no import: 10 s
        tried = subprocess.run(["python3", "-c", asks], capture_output=True, text=True)
        self.torch = tried.stdout.strip() if tried.returncode == 0 else None
        self.detours = Detours(self.hopper())

    def name(self):
        return (self.gpu.name if self.gpu else "a CPU") + " (a rehearsal)" * self.rehearsal

    def hopper(self):
        return self.gpu is not None and self.gpu.capability == "90"


def arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_check.sh",
        description="Tries everything that wants a GPU.",
        epilog="Exit code 0: all that was tried works; 1: something does not; 2: a wrong argument.",
    )
    parser.add_argument(
        "only", nargs="*", metavar="CHECK", help="a check, or a part, to run (again); default: all that are due"
    )
    parser.add_argument("--seconds", type=float, help="end after this many seconds; the next call goes on")
    parser.add_argument("--limit", type=float, help="no check may take more than this many seconds (default: its own limit)")
    parser.add_argument(
        "--out", type=Path, default=WORK / "out", help="where page, figures and logs go (build/gpu_check/out)"
    )
    parser.add_argument("--fresh", action="store_true", help="forget what earlier calls found")
    parser.add_argument("--list", action="store_true", help="name the checks, what each proves, and how it went here")
    args = parser.parse_args()
    for asked in args.only:
        if not any(asked in (check.name, check.name.split("/")[0]) for check in CHECKS):
            parser.error(f"there is no check {asked}; --list names them")
    for name in ("seconds", "limit"):
        if getattr(args, name) is not None and not getattr(args, name) > 0:
            parser.error(f"--{name} {getattr(args, name):g}: expected more than 0")
    return args


def is_asked(check, only):
    """The machine's checks are part of every call, so that the programs are those of the sources."""
    return not only or any(asked in (check.name, check.name.split("/")[0]) for asked in ("machine", *only))


def obstacle(check, records, machine):
    """Returns the reason not to try a check, or None."""
    found = machine.detours.broken
    for need in check.needs:
        if need in found:
            return f"{found[need]} found this broken: {need}"
        if records.failed(need):
            return f"{need} has failed"
    if check.rate and machine.rehearsal:
        return "it measures a rate, and waits for a GPU"
    if check.gpu and not machine.gpu:
        return "it waits for a GPU, or for nvcc and the software GPU"
    return None


def attempt(check, machine, args, deadline):
    """Runs one check and returns its record."""
    scratch, kept = WORK / "scratch", WORK / "kept"
    shutil.rmtree(scratch, ignore_errors=True)
    for folder in (scratch, kept, WORK / "logs"):
        folder.mkdir(parents=True, exist_ok=True)
    log = WORK / "logs" / (check.name.replace("/", ".") + ".txt")
    begin, result, why = time.monotonic(), "ok", ""
    with open(log, "w+b", buffering=0) as file:
        limit = 5 * check.limit if machine.rehearsal else check.limit
        if args.limit and not check.name.startswith("machine/"):
            limit = min(limit, args.limit)
        job = Job(machine, limit, deadline, file, scratch, kept)
        try:
            check.does(job)
        except Ended as end:
            result, why = end.result, end.why
        except Exception as error:  # a program wrote something unexpected: this check has failed, the others go on
            result, why = "failed", f"{type(error).__name__}: {error}"
    shutil.rmtree(scratch, ignore_errors=True)
    return {
        "result": result,
        "why": why,
        "seconds": round(time.monotonic() - begin, 1),
        "limit": limit,
        "figures": job.figures,
        "command": job.commands[-1] if job.commands else "",
        "log": log.name,
        "keeps": job.keeps,
    }


def main():
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends the check that runs, and what it started
    try:
        args = arguments()
    except SystemExit as end:
        return 1 if end.code else 0  # argparse ends with 2, which train_llama has for what does not fit
    os.chdir(ROOT)
    for name in (
        "MAKEFLAGS",
        "MAKELEVEL",
        "MFLAGS",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "DEVICE",
        "SANITIZE",
        "EMULATOR",
        "BUILD",
        "SOFTGPU",
    ):  # the caller's would change the build or the number of ranks
        os.environ.pop(name, None)
    others = ("PMIX_", "PMI_", "OMPI_COMM_", "SLURM_", "LLMC_")  # LLMC_SIZES=few would make its figures those of a rehearsal
    for name in [name for name in os.environ if name.startswith(others)]:
        os.environ.pop(name)
    os.environ.update(NO_COLOR="1", PYTHONUNBUFFERED="1")
    start = time.monotonic()
    deadline = start + args.seconds - CLOSING if args.seconds else float("inf")
    machine = Machine()
    if machine.rehearsal:  # it looks at the checks, not at orders of threads
        os.environ.update(LLMC_ONE_ORDER="1", LLMC_SIZES="few", LLMC_SOFTGPU="h100", LLMC_SOFTGPU_COUNT="1")
    records = Records(WORK, args.out, machine.name(), args.fresh)
    if args.list:
        page.print_list(CHECKS, records)
        return 0
    version = sources(ROOT)
    records.begin_call(args)
    print(f"{machine.name()}{'' if machine.torch else '; python3 has no torch with transformers'}", flush=True)
    asked = [check for check in CHECKS if is_asked(check, args.only)]
    for check in CHECKS:
        machine.detours.broken = records.broken(CHECKS, asking=check)
        if check not in asked or not (args.only or records.due(check, version)) or not records.stands_in(check):
            continue
        clock = f"{time.monotonic() - start:5.0f} s  {check.name}"
        if any(records.result(machine.detours.broken.get(need)) == "unfinished" for need in check.needs):
            continue  # nobody knows yet whether it is broken: the next call does
        why = obstacle(check, records, machine)
        if why:
            records.add(check.name, {"result": "skipped", "why": why, "seconds": 0}, version)
            print(f"{clock}: skipped: {why}", flush=True)
            continue
        if deadline - time.monotonic() < (1 if machine.rehearsal else check.expected):
            continue  # a shorter one may still fit
        print(f"{clock} … ", end="", flush=True)
        record = attempt(check, machine, args, deadline)
        records.add(check.name, record, version)
        print(f"{record['result']} ({record['seconds']:.1f} s){': ' + record['why'] if record['why'] else ''}", flush=True)
        machine.detours.broken = records.broken(CHECKS)
        if record["figures"] and not machine.rehearsal:
            machine.state = machine.gpu.state()
        page.write(CHECKS, records, machine)
        if record["result"] in ("crashed", "hung") and not machine.rehearsal and gpu.find() is None:
            print("The GPU no longer answers (nvidia-smi): nothing more can be tried.", flush=True)
            break
    records.end_call(time.monotonic() - start)
    machine.detours.broken = records.broken(CHECKS)
    print("\n" + page.write(CHECKS, records, machine))
    return 1 if any(records.failed(check.name) for check in asked) else 0


if __name__ == "__main__":
    sys.exit(main())
