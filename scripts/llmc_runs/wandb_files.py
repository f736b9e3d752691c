"""What wandb's own files hold of a run: RUN/wandb/[offline-]run-<when>-<id>/run-<id>.wandb, a folder a call.

wandb writes them every 15 s, and what it has not written is gone after kill -9: only they know which steps are kept.
A file is a log of records in LevelDB's format after a header of 7 bytes.
"""

import glob
import os
import struct

from google.protobuf.message import DecodeError
from wandb.proto.wandb_internal_pb2 import Record

from llmc_runs.run import RunError

HEADER = b":W&B\xe1\xbe\0"
BLOCK = 32768


def records(path):
    """The records of a .wandb file, up to the end or to what was cut short."""
    with open(path, "rb") as file:
        data = file.read()
    if not data.startswith(HEADER[:len(data)]):
        raise RunError(f"{path} is not in the format of the wandb that this program knows\n"
                       "  move its folder elsewhere: what it holds is then logged again")
    at, whole = len(HEADER), b""
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:
            at += BLOCK - at % BLOCK  # padding
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7:at + 7 + length]
        at += 7 + length
        if at > len(data):
            return
        if kind in (1, 4):  # whole, or the last part of it
            try:
                yield Record.FromString(whole)
            except DecodeError:
                return
            whole = b""


def history(folder, run_id):
    """(step, {name: value in JSON}) of what was logged with this id, a file after the other."""
    for path in sorted(glob.glob(os.path.join(glob.escape(folder), "*run-[0-9]*", f"run-{run_id}.wandb"))):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                yield record.history.step.num, {item.key or item.nested_key[0]: item.value_json
                                                for item in record.history.item}
