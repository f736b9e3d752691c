"""Runs train_llama for scripts: to its end, until its time is over, or killed halfway and resumed. Tells what its bits depend
on, and the commit: in a copy of the tree without .git the environment variable LLMC_COMMIT names it.
"""

import contextlib
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
HURRY, AT_ONCE = 1, 3  # seconds, if this script is asked to end (gpu_check kills it after 5): until SIGINT, and after


class Failed(Exception):
    """A command did not end as it must; the message has its last lines."""


class TimeOver(Failed):
    """A command needed more time than it was given."""


def heed_signals():
    """SIGTERM and SIGHUP end this script as Ctrl-C does: by an exception, so that it ends what it started."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))


def words_of(options):
    """{"steps": 20, "fp8": None, "resume": "auto"} → --steps 20 --resume auto."""
    return [word for name, value in options.items() if value is not None for word in (f"--{name}", str(value))]


def spell(command, **variables):
    """The command as a line to type in the root of the repository, with these variables of the environment."""
    words = [*(f"{name}={value}" for name, value in variables.items()), *map(str, command)]
    return " ".join(f"'{word}'" if re.search(r"[*? ]", word) else word for word in words).replace(f"{ROOT}/", "")


def prepare_child():
    """Lets a child end when this script is killed, and heed SIGINT, also if a shell started this script in the background."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def start(command, log, **variables):
    """Starts a process in a group of its own, which ends with this script. `log` is an open file for what it prints."""
    texts = {name: str(value) for name, value in variables.items()}
    environment = dict(os.environ, NO_COLOR="1", PYTHONUNBUFFERED="1", **texts)
    try:
        return subprocess.Popen([str(word) for word in command], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
                                stdout=log, stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=prepare_child)
    except OSError as error:
        raise Failed(f"{command[0]}: {error.strerror}") from None


def signal_group(process, number):
    """Sends a signal to a process and to all of its group."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def end(processes, patience=LAST_WORDS):
    """Asks processes to end. After `patience` seconds a second SIGINT ends them at once. Kills what is left."""
    for number, seconds in ((signal.SIGTERM, patience), (signal.SIGINT, 0.1), (signal.SIGINT, AT_ONCE), (signal.SIGKILL, 5)):
        running = [process for process in processes if process.poll() is None]
        over = time.monotonic() + seconds
        for process in running:
            signal_group(process, number)
        while time.monotonic() < over and any([process.poll() is None for process in running]):
            time.sleep(0.01)


def finish(processes, log, limit, stops=False, watch=None):
    """Waits until all have ended, at most `limit` seconds. Raises Failed if one fails, and TimeOver if the time is over; with
    `stops` they are asked to end before that, and must do so well. `watch` is called all the time."""
    latest = time.monotonic() + limit - LAST_WORDS * stops
    try:
        while True:
            codes = [process.poll() for process in processes]
            if any(codes) or None not in codes or time.monotonic() > latest:
                break
            if watch:
                watch()
            time.sleep(0.01)
        if any(codes):
            time.sleep(2)  # the others notice
        end(processes)
    except BaseException:
        end(processes, HURRY)
        raise
    if None in codes and not any(codes) and not stops:
        raise TimeOver(f"not done after {limit:.0f} s\n{tail(log)}")
    failures = [code for code in [*codes, *(process.returncode for process in processes)] if code]
    if failures:
        raise Failed(f"exit code {failures[0]}\n{tail(log)}")


def kill_when(done, command, log, limit, watch=None, **variables):
    """Runs a command and kills it (SIGKILL) when done() is true. Returns whether it was killed; False: it ended by itself before.
    Raises Failed and TimeOver as finish()."""
    over = time.monotonic() + limit
    process = start(command, log, **variables)
    try:
        while process.poll() is None and not done():
            if time.monotonic() > over:
                raise TimeOver(f"not as far as it must be after {limit:.0f} s\n{tail(log)}")
            if watch:
                watch()
            time.sleep(0.002)
    finally:
        signal_group(process, signal.SIGKILL)
        process.wait()
    if process.returncode not in (0, -signal.SIGKILL):
        raise Failed(f"exit code {process.returncode}\n{tail(log)}")
    return process.returncode != 0


def tail(log):
    return "\n".join(Path(log.name).read_text(errors="replace").splitlines()[-12:])


def lines_of(folder):
    """The objects of a run's train.jsonl; a last line that is not whole is left out. The strings "nan", "inf" and "-inf", which
    stand for numbers that JSON does not have, are numbers here."""
    def numbers(pairs):
        return {name: float(value) if value in ("nan", "inf", "-inf") else value for name, value in pairs}

    path = Path(folder, "train.jsonl")
    text = path.read_text() if path.is_file() else ""
    return [json.loads(line, object_pairs_hook=numbers) for line in text[: text.rfind("\n") + 1].splitlines()]


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
    for _ in range(3):  # it may have saved another one, or be done, before this script looks
        shutil.rmtree(out, ignore_errors=True)
        killed = kill_when(lambda: whole.is_dir() and reached_by(out) > half, command, log, limit, watch, **variables)
        reached = reached_by(out)
        if killed and list(out.glob("checkpoints/step-????????")) == [whole]:
            finish([start([*command, "--resume", "auto"], log, **variables)], log, over - time.monotonic(), watch=watch)
            return reached
    raise Failed(f"the run was at step {reached} of {steps} before it could be killed\n  take more steps")


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 22):
            digest.update(block)
    return digest.hexdigest()


def commit():
    """Returns LLMC_COMMIT if it is set, else what git says of this tree, with "-dirty" if files differ; else "unknown"."""
    try:
        said = subprocess.run(["git", "describe", "--always", "--dirty", "--exclude=*"], cwd=ROOT, capture_output=True,
                              text=True).stdout
    except OSError:
        said = ""  # no git
    return os.environ.get("LLMC_COMMIT") or said.strip() or "unknown"


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
    """Returns what the bits of a training depend on, apart from its options and data: {what: value}. `banner` is what the run
    printed."""
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
