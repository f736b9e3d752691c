"""A run's folder: config.json, run.json, memory.txt, and train.jsonl, which is the truth about what has happened.

train.jsonl has one object a line, each with a "step". "time" and "tokens" say when the line was written and how many tokens
were trained on by then; older programs left them out. Every other field that is a number is a scalar, whatever its
name; "nan", "inf" and "-inf" are numbers; "sample" is text; "computing_ms" lists how long each rank
computed, and "slowest" names one; "skipped" says which scalars made a step a spike, so that it made
no update. A run that is under way holds a lock on the file, of which a reader asks and which it never takes: a run that
starts in that moment would take the reader for another run.
"""

import fcntl
import json
import os
import signal
import struct
import sys
from dataclasses import dataclass

F_OFD_GETLK = getattr(fcntl, "F_OFD_GETLK", 36)  # Python names Linux's number from 3.9 on
FLOCK = "hhqqi4x"  # Linux's struct flock: type, whence, start, length, process
NOT_FINITE = ("nan", "inf", "-inf")


class RunError(Exception):
    """A folder or a line that is no run's; the message names it and says what was expected."""


class LinesTakenBack(RunError):
    """The run went on from a checkpoint before lines that were read: restart() reads its log from the beginning."""


@dataclass(frozen=True)
class Line:
    """One line of train.jsonl, and how far training had come with it."""

    number: int  # from 1
    text: bytes  # as it stands there
    step: int
    scalars: dict  # name → float
    sample: str | None
    tokens: float  # trained on so far
    seconds: float  # of training so far, without validation and samples
    time: float | None = None  # when it was written, in seconds since 1970; None in an older program's log
    skipped: bool = False  # a step whose update was not made, since it was a spike
    computing: tuple = ()  # of a look at the GPUs: how long each rank computed, in ms
    slowest: str = ""  # and where the slowest of them runs


class Run:
    """A folder that is read as it grows: read() gives what is new, in whole lines."""

    def __init__(self, folder):
        self.folder = os.path.realpath(folder)
        self.name = os.path.basename(self.folder)
        self.log = os.path.join(folder, "train.jsonl")
        if not os.path.isdir(folder):
            raise RunError(f"{folder} is not a folder\n  expected a run's: runs/latest, or what --out named")
        if not os.path.isfile(self._own("train.jsonl")):
            raise RunError(f"{folder} has no train.jsonl: not the folder of a run")
        self.restart()

    def restart(self):
        """Begins to read at the first line again."""
        self._offset = self._number = 0
        self._file = None  # its inode: a run that goes on from a checkpoint before its last lines replaces the file
        self._step, self._tokens, self._seconds = None, 0.0, 0.0

    def config(self):
        """The options of the run by name; none if config.json is missing."""
        return self._json("config.json")

    def facts(self):
        """The model, the number of nodes and ranks, the device and the batch of the last start of the program; none
        if run.json is missing."""
        return self._json("run.json")

    def memory_plan(self):
        """The table of the memory plan as the run printed it; empty if memory.txt is missing. The tensors follow there, after
        an empty line."""
        return self._text("memory.txt").split("\n\n")[0].rstrip()

    def started(self):
        """When the run began, in seconds since 1970, for logs without times: config.json is written first, and once."""
        for name in ("config.json", "train.jsonl"):
            path = os.path.join(self.folder, name)
            if os.path.exists(path):
                return os.path.getmtime(path)

    def is_live(self):
        """Whether the run is under way; where a file system knows no locks it always seems to be. Only Linux runs the
        program: elsewhere no run seems to be."""
        if not sys.platform.startswith("linux"):
            return False
        whole = struct.pack(FLOCK, fcntl.F_RDLCK, os.SEEK_SET, 0, 0, 0)
        with self._open() as log:
            try:
                answer = fcntl.fcntl(log, F_OFD_GETLK, whole)
            except OSError:
                return True
            return struct.unpack(FLOCK, answer)[0] != fcntl.F_UNLCK

    def read(self):
        """The lines that are complete and were not read before. A line that is still being written waits."""
        with self._open() as log:
            file, size = os.fstat(log.fileno()).st_ino, log.seek(0, os.SEEK_END)
            if size < self._offset or self._file not in (None, file):
                raise LinesTakenBack(f"{self.log} has lost lines that were read: its run went on from a checkpoint; start again")
            self._file = file
            log.seek(self._offset)
            whole, newline, _ = log.read().rpartition(b"\n")
        self._offset += len(whole) + len(newline)
        return [self._line(text) for text in (whole + newline).splitlines()]

    def _open(self):
        try:
            return open(self.log, "rb")
        except OSError as error:
            raise RunError(f"cannot read {self.log}: {error.strerror}") from None

    def _json(self, name):
        """The object in this file; an empty one if the file is missing."""
        path = os.path.join(self.folder, name)
        try:
            fields = json.loads(self._text(name) or "{}")
        except (ValueError, RecursionError) as error:
            raise RunError(f"{path}: {error}") from None
        if not isinstance(fields, dict):
            raise RunError(f"{path}: expected an object")
        return fields

    def _own(self, name):
        """The path of this file; RunError if a link leads out of the folder: what others are shown, or a server gets,
        must not be a file of the user's that somebody else's run chose."""
        path = os.path.join(self.folder, name)
        if os.path.commonpath([self.folder, os.path.realpath(path)]) != self.folder:
            raise RunError(f"{path} is a link to {os.path.realpath(path)}, outside of the run's folder\n"
                           "  if that is meant, put the file itself there instead of the link")
        return path

    def _text(self, name):
        path = self._own(name)
        if not os.path.exists(path):
            return ""
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()

    def _line(self, text):
        self._number += 1
        try:
            fields = json.loads(text)
            step = fields.pop("step")
            assert isinstance(step, int) and not isinstance(step, bool) and abs(step) < 2**63
            time, tokens = clock(fields.pop("time", None)), clock(fields.pop("tokens", None))
            scalars = {name: float(value) for name, value in fields.items() if is_scalar(value)}
        except (ValueError, AttributeError, KeyError, TypeError, AssertionError, OverflowError, RecursionError):
            start = text[:60].decode(errors="replace")
            raise RunError(f'{self.log}:{self._number}: expected an object with a "step", found: {start}') from None
        self._advance(step, scalars)
        self._tokens = self._tokens if tokens is None else tokens
        sample, slowest = fields.get("sample"), fields.get("slowest")
        return Line(self._number, text, step, scalars, sample if isinstance(sample, str) else None, self._tokens,
                    self._seconds, time, "skipped" in fields, times(fields.get("computing_ms")),
                    slowest if isinstance(slowest, str) else "")

    def _advance(self, step, scalars):
        """Moves the clocks over the steps since the last line that told their speed."""
        if "step_ms" not in scalars or "tokens_per_s" not in scalars:
            return
        seconds = scalars["step_ms"] / 1e3
        done = step if self._step is None else step - self._step  # a resumed run begins with what was done before,
        self._tokens += done * seconds * scalars["tokens_per_s"]
        self._seconds += seconds * (1 if self._step is None else done)  # but its clock begins at 0
        self._step = step


def clock(value):
    """A time or a number of tokens; None if it is none."""
    return float(value) if is_scalar(value) and value not in NOT_FINITE and 0 <= value < 2**63 else None


def times(values):
    """The times of all ranks; none if they are no list of times."""
    values = [clock(value) for value in values] if isinstance(values, list) else []
    return () if None in values else tuple(values)


def is_scalar(value):
    """A number, or the word for one that is not finite."""
    return (isinstance(value, (int, float)) and not isinstance(value, bool)) or value in NOT_FINITE


def open_runs(folders):
    """The runs in these folders, with names that tell them apart."""
    runs = [Run(folder) for folder in folders]
    places = [run.folder for run in runs]
    for run in runs:
        if places.count(run.folder) > 1:
            raise RunError(f"{run.folder} is named twice")
    common = os.path.commonpath([os.path.dirname(place) for place in places])
    if len({run.name for run in runs}) < len(runs):
        for run in runs:
            run.name = os.path.relpath(run.folder, common)
    return runs


def command(main, interrupted=0):
    """Runs main() as a command: what is wrong with a run is said in words. Ctrl-C and SIGTERM end it with the exit code
    `interrupted`: of what follows runs they are the ordinary end."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(interrupted))
    sys.stdout.reconfigure(line_buffering=True)
    try:
        main()
    except SystemExit as end:
        sys.exit(1 if end.code == 2 else end.code)  # argparse ends with 2, which train_llama has for what does not fit
    except RunError as error:
        sys.exit(f"{os.path.splitext(os.path.basename(sys.argv[0]))[0]}: {error}")
    except KeyboardInterrupt:
        print()
        sys.exit(interrupted)
