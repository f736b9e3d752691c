"""Runs train_llama for scripts: to its end, until its time is over, or killed halfway and resumed; and tells what its bits
depend on."""

import ctypes
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts/gpu_check"))
import gpu  # noqa: E402  (scripts/gpu_check/gpu.py: the GPU that nvidia-smi names)

LIBC, PR_SET_PDEATHSIG = ctypes.CDLL(None), 1  # of <sys/prctl.h>: the signal that a child gets when its parent dies
LAST_WORDS = 15  # seconds that a run has to end well when its time is over


class Failed(Exception):
    """A command did not end as it must; the message has its last lines."""


def words_of(options):
    """{"steps": 20, "fp8": None, "resume": "auto"} → --steps 20 --resume auto."""
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


def spell(command):
    """The command as a line to type in the root of the repository."""
    quoted = (f"'{word}'" if re.search(r"[*? ]", word) else word for word in map(str, command))
    return " ".join(quoted).replace(f"{ROOT}/", "")


def start(command, log, **variables):
    """Starts a process in a group of its own, which ends with this script. `log` is an open file for what it prints."""
    texts = {name: str(value) for name, value in variables.items()}
    environment = dict(os.environ, NO_COLOR="1", PYTHONUNBUFFERED="1", **texts)
    try:
        return subprocess.Popen([str(word) for word in command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                stdout=log, stderr=subprocess.STDOUT, start_new_session=True,
                                preexec_fn=lambda: LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL))
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None


def end(process):
    """Asks a process and all that it started to end, and kills what has not after LAST_WORDS seconds."""
    for number, seconds in ((signal.SIGTERM, LAST_WORDS), (signal.SIGKILL, None)):
        try:
            os.killpg(process.pid, number)
            process.wait(seconds)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass


def finish(processes, log, limit, stops=False, watch=None):
    """Waits until all have ended, at most `limit` seconds. Raises Failed if one fails or if the time is over; with `stops` the
    end of the time is no failure. `watch` is called every few seconds."""
    began = looked = time.monotonic()
    over = False
    try:
        while not over and any(process.poll() is None for process in processes):
            over = time.monotonic() - began > limit - LAST_WORDS * stops
            if any(process.returncode for process in processes):
                time.sleep(2)  # the others notice
                break
            if watch and time.monotonic() - looked > 5:
                looked = time.monotonic()
                watch()
            time.sleep(0.01)
    finally:
        for process in processes:
            if process.poll() is None:
                end(process)
    codes = [process.returncode for process in processes]
    if over and not stops:
        raise Failed(f"not done after {limit:.0f} s\n{tail(log)}")
    if any(codes) and not over:
        raise Failed(f"exit code {next(code for code in codes if code)}\n{tail(log)}")


def tail(log):
    return "\n".join(Path(log.name).read_text(errors="replace").splitlines()[-12:])


def lines_of(folder):
    """The objects of a run's train.jsonl; a last line that is not whole is left out."""
    path = Path(folder, "train.jsonl")
    text = path.read_text() if path.is_file() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def reached_by(folder):
    """The last step that a run has logged; 0: none."""
    return max((line["step"] for line in lines_of(folder)), default=0)


def kill_and_resume(command, out, steps, log, limit, watch=None, **variables):
    """Runs a training that saves a checkpoint halfway, kills it (SIGKILL) when that is whole and a step beyond it is logged,
    and resumes it. Returns the last step that the killed run had logged."""
    half = steps // 2
    whole = out / f"checkpoints/step-{half:08}"
    # The training waits for its save: so all of the second half is left when the checkpoint is whole.
    command = [*command, "--checkpoint-every", half, "--checkpoint-async", "off", "--out", out]
    over = time.monotonic() + limit
    for _ in range(3):  # it may be done before this script looks
        shutil.rmtree(out, ignore_errors=True)
        process = start(command, log, **variables)
        while process.poll() is None and not (whole.is_dir() and reached_by(out) > half) and time.monotonic() < over:
            time.sleep(0.002)
        alive = process.poll() is None
        process.kill()
        process.wait()
        reached = reached_by(out)
        if alive and half < reached < steps:
            finish([start([*command, "--resume", "auto"], log, **variables)], log, over - time.monotonic(), watch=watch)
            return reached
        if alive and reached <= half:
            raise Failed(f"it was at step {reached} of {steps} after {limit:.0f} s\n{tail(log)}")
        if not alive and process.returncode != 0:
            raise Failed(f"exit code {process.returncode}\n{tail(log)}")
    raise Failed(f"the run was at step {reached} of {steps} before it could be killed: its checkpoint of step {half} was late\n"
                 "  take more steps")


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def commit():
    """Of this tree, with "-dirty" if files differ from it; "unknown" of a copy without git's folder."""
    said = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True, text=True)
    return said.stdout.strip() or "unknown"


def libraries(program):
    """{name: path} of the shared libraries that the program loads."""
    said = subprocess.run(["ldd", program], capture_output=True, text=True).stdout
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", said, re.M))


def openblas_core(path):
    """The processor that OpenBLAS takes its kernels for, here and with these variables."""
    library = ctypes.CDLL(path)
    library.openblas_get_corename.restype = library.openblas_get_config.restype = ctypes.c_char_p
    version = library.openblas_get_config().decode().split()[1]
    return f"{version}, kernels for {library.openblas_get_corename().decode()}"


def bits_depend_on(program, banner):
    """What the bits of a training depend on beside its options and data: {what: value}. `banner` is what the run printed."""
    facts = {"commit": commit()}
    flags = program.parent / "flags"
    if flags.is_file():
        compiler = flags.read_text().split()[0]
        version = subprocess.run([compiler, "--version"], capture_output=True, text=True).stdout.partition("\n")[0]
        target = re.search(r"-march=[^ ]+|arch=compute_[^ ,]+", flags.read_text())
        facts["compiler"] = f"{version}; {target[0] if target else 'its own -march'}"
    for name in ("device", "attention"):
        found = re.search(rf"^  {name} +(.*)", banner, re.M)
        facts[name] = found[1] if found else "?"
    found = gpu.find()
    if found and "CPU" not in facts["device"]:
        facts["driver"] = found.driver
    used = libraries(program)
    for name, path in used.items():
        if re.match(r"lib(cublasLt|cudart|nccl)\.", name):
            facts[name] = os.path.realpath(path).rpartition("/")[2]
        if name.startswith("libopenblas"):
            facts["OpenBLAS"] = openblas_core(path)
    libc, version = platform.libc_ver()
    facts["libm"] = f"{libc} {version}, which has variants for processors with and without FMA"
    for name in ("LLMC_THREADS", "OPENBLAS_CORETYPE", "GLIBC_TUNABLES"):
        facts[name] = os.environ.get(name, "not set")
    return facts


def said(command, limit, **variables):
    """What a command prints, errors included. It has `limit` seconds; then it is ended with all that it started. Raises Failed."""
    with tempfile.NamedTemporaryFile("w+") as log:
        try:
            finish([start(command, log, **variables)], log, limit)
        except Failed as error:
            raise Failed(f"{spell(command)}\n{error}") from None
        return Path(log.name).read_text(errors="replace")
