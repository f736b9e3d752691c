"""Runs the commands of a check, each within the time that is left, and tells how they ended."""

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

NOTICE = 90  # seconds that a rank has to notice that another one has failed, and to abort NCCL


class Ended(Exception):
    """Ends a check that is not ok: `result` is failed, crashed, hung, skipped or unfinished."""

    def __init__(self, result, why):
        super().__init__(why)
        self.result, self.why = result, why


def failed(why):
    raise Ended("failed", why)


def skipped(why):
    raise Ended("skipped", why)


def last_line(text):
    """Returns the line that says most about an end: the last error, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("error", "FAIL", "make: ***")) or "Error:" in line]
    return (errors or lines or ["it said nothing"])[-1][:200]


class Job:
    """A running check: its function calls run() for commands and figure() for numbers.

    machine: gpu, rehearsal, programs (the build's folder), torch, detours (see __main__.py, order.py)
    limit: seconds until the check counts as hung; deadline: when the whole call must end, on time.monotonic's clock
    """

    def __init__(self, machine, limit, deadline, log, scratch, kept):
        self.machine, self.limit, self.deadline = machine, limit, deadline
        self.log, self.scratch, self.kept = log, scratch, kept
        self.figures, self.commands, self.keeps = [], [], []
        self.begin = time.monotonic()

    # ---- output

    def say(self, text):
        self.log.write((text + "\n").encode())
        self.log.flush()

    def figure(self, name, value, unit="", predicted=None, least=None):
        """Adds a number to the page, with its prediction and the limit that it should reach. None is a failure."""
        if value is None:
            failed(f"no figure for '{name}' in its output")
        self.figures.append({"name": name, "value": value, "unit": unit, "predicted": predicted, "least": least})

    def keep(self, name):
        """Returns the path of a file that goes into the tar when the check has ended, and stays for the next check."""
        self.keeps.append(name)
        (self.kept / name).parent.mkdir(parents=True, exist_ok=True)
        return self.kept / name

    def folder(self, name):
        """Returns a path in the scratch folder of this check."""
        return self.scratch / name

    # ---- commands

    def run(self, *command, code=0, **variables):
        """Returns the output of a command. Its exit code must be `code` (None: any, "failure": not 0)."""
        return self._wait([(command, variables)], code)

    def run_ranks(self, *command, code=0, **variables):
        """Runs two processes on the one GPU. NCCL takes them for two machines that are linked by sockets."""
        rendezvous = self.scratch / f"rendezvous{len(self.commands)}"
        shared = dict(
            WORLD_SIZE=2,
            LOCAL_RANK=0,
            LOCAL_WORLD_SIZE=1,
            NCCL_SOCKET_IFNAME="lo",
            NCCL_IB_DISABLE=1,
            NCCL_NET="Socket",
            LLMC_TEST_RENDEZVOUS=rendezvous,
            **self.machine.detours.nccl(),
            **variables,
        )
        words = [rendezvous if word == "RENDEZVOUS" else word for word in command]
        return self._wait([(words, dict(shared, RANK=rank, NCCL_HOSTID=f"rank{rank}")) for rank in (0, 1)], code)

    def _wait(self, processes, code):
        command = " ".join(str(word) for word in processes[0][0]).replace(f"{Path.cwd()}/", "")
        self.commands.append(command)
        self.say(f"$ {command}" + (" (two ranks)" if len(processes) > 1 else ""))
        start = os.lseek(self.log.fileno(), 0, os.SEEK_END)
        running = [self._start(words, variables) for words, variables in processes]
        end = min(self.begin + self.limit, self.deadline)
        try:
            while any(p.poll() is None for p in running) and time.monotonic() < end:
                if any(p.returncode for p in running):
                    end = min(end, time.monotonic() + NOTICE)
                    while any(p.poll() is None for p in running) and time.monotonic() < end:
                        time.sleep(0.1)
                    break
                time.sleep(0.02)
            late = [p for p in running if p.poll() is None]
            self.log.seek(start)  # before they are stopped: the last line is to tell how far they came
            said = self.log.read().decode(errors="replace")
        finally:
            for process in running:
                self._stop(process)
        self._judge(running, late, code, said)
        return said

    def _start(self, words, variables):
        environment = dict(os.environ, **{name: str(value) for name, value in variables.items()})
        ours = str(words[0]).startswith(str(self.machine.programs)) and shutil.which("stdbuf")
        line_by_line = ["stdbuf", "-oL"] if ours else []  # else a crash loses what was said last
        try:
            return subprocess.Popen(
                line_by_line + [str(word) for word in words],
                stdin=subprocess.DEVNULL,
                stdout=self.log,
                stderr=self.log,
                env=environment,
                preexec_fn=os.setpgrp,
            )
        except OSError as error:
            failed(f"{words[0]}: {error.strerror}")

    def _stop(self, process):
        """Ends a process and all that it started. One that the driver holds may stay: nobody can end it."""
        try:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait(5)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            pass
        try:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        except (ProcessLookupError, PermissionError, subprocess.TimeoutExpired):
            pass

    def _judge(self, running, late, code, said):
        seconds = time.monotonic() - self.begin
        others = [p.returncode for p in running if p not in late and p.returncode]
        crashes = [-c if c < 0 else c - 128 for c in others]  # a shell says 128 + the signal
        crashes = [number for number in crashes if number in signal.valid_signals()]
        if late and time.monotonic() >= self.deadline:
            raise Ended("unfinished", f"the call's time ended after {seconds:.0f} s of its {self.limit:.0f} s")
        if crashes:
            raise Ended("crashed", f"{signal.Signals(crashes[0]).name}; it last said: {last_line(said)}")
        if late and not others:
            raise Ended("hung", f"not done after {seconds:.0f} s; it last said: {last_line(said)}")
        if late:
            raise Ended("hung", f"one rank failed, the other did not notice; {last_line(said)}")
        if code == "failure" and not all(p.returncode for p in running):
            failed(f"it ended well, though it must not: {last_line(said)}")
        if isinstance(code, int) and any(p.returncode != code for p in running):
            failed(f"exit code {[p.returncode for p in running if p.returncode != code][0]}: {last_line(said)}")
