"""TensorBoard event files of a run: one event for each line of train.jsonl, in its order.

So the number of events says how many lines are written, and a new start goes on with the next, however the last one
ended. If the run has taken lines back since, all files are written anew. Values are float32, as TensorBoard's are. An
event's time is when its line was written, or, in an older program's log, the run's start plus its seconds of training.
"""

import glob
import json
import os

from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
from tensorboard.compat.proto.event_pb2 import Event
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.plugins.text.metadata import create_summary_metadata
from tensorboard.summary.writer.event_file_writer import EventFileWriter
from tensorboard.util.tensor_util import make_tensor_proto

from llmc_runs.files import LinesWritten, lock_folder
from llmc_runs.run import LinesTakenBack


class EventFiles:
    """The event files of `run` in `folder`; nobody else may write there at the same time. With `by_tokens` the x axis, to
    TensorBoard the step, is the number of tokens that were trained on."""

    def __init__(self, run, folder, by_tokens=False):
        self.run = run
        self._by_tokens = by_tokens
        self._lock = lock_folder(folder, f"{folder} is being written by another scripts/tensorboard\n"
                                 "  let that one go on, or name another folder with --logdir")
        self._folder = folder
        self._seen = LinesWritten(os.path.join(folder, "lines"))
        self._written = count_events(folder)
        self._writer = None  # makes a file, so only once there is something to write
        self._read = run.read()
        if not self._seen.agree(self._read):
            self._write_anew()

    def _write_anew(self):
        print(f"{self.run.name} went on from a checkpoint before its last lines: its event files are written anew")
        if self._writer:
            self._writer.close()
            self._writer = None
        for path in event_paths(self._folder):
            os.remove(path)
        self._seen.clear()
        self._written = 0

    def update(self):
        """Writes what is new in the run, to the disk; says how many lines that was."""
        try:
            read = self._read + self.run.read()
        except LinesTakenBack:
            self.run.restart()
            read = self.run.read()
            if not self._seen.agree(read):
                self._write_anew()
        self._read = []
        self._seen.add(read)
        lines = [line for line in read if line.number > self._written]
        if lines and not self._writer:
            self._writer = EventFileWriter(self._folder)
        for line in lines:
            self._writer.add_event(self._event(line))
        if lines:
            self._writer.flush()
            self._written = lines[-1].number
        return len(lines)

    def _event(self, line):
        values = [Summary.Value(tag=name, simple_value=value) for name, value in line.scalars.items()]
        if line.sample is not None:
            values.append(text_value("sample", line.sample))
        if line.number == 1:
            values.append(text_value("options", json.dumps(self.run.config(), indent=2)))
            values.append(text_value("memory plan", self.run.memory_plan()))
        time = self.run.started() + line.seconds if line.time is None else line.time
        step = int(line.tokens) if self._by_tokens else line.step
        return Event(step=step, wall_time=time, summary=Summary(value=values))


def text_value(tag, text):
    """Text as it stands: TensorBoard renders Markdown, and code in it is what is indented."""
    indented = "\n".join("    " + line for line in text.split("\n"))
    return Summary.Value(tag=tag, metadata=create_summary_metadata(display_name="", description=""),
                         tensor=make_tensor_proto([indented.encode()]))


def event_paths(folder):
    return sorted(glob.glob(os.path.join(glob.escape(folder), "events.out.tfevents.*")))


def count_events(folder):
    """How many events with values are in the event files; a record that was cut short does not count."""
    count = 0
    for path in event_paths(folder):
        count += sum(Event.FromString(record).HasField("summary") for record in RawEventFileLoader(path).Load())
    return count
