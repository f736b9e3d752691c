"""The tools that the campaigns of faults share: processes, and the bits of a run."""

import collections
import filecmp
import json
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]
ENVIRONMENT = dict(os.environ, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                   OMPI_MCA_mpi_yield_when_idle="1", OMPI_MCA_pml="ob1", NO_COLOR="1", LLMC_THREADS="1",
                   OPENBLAS_NUM_THREADS="1")


class Fault(Exception):
    """Something happened that must not."""


def bits_of(folder):
    """The losses of a run, in the order of its steps, and the file of its exported weights."""
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]
    losses = [(line["step"], line["loss"], line["grad_norm"]) for line in lines if "loss" in line]
    return losses, folder / "export" / "model.safetensors"


def require_same_bits(straight, folder):
    (losses, weights), (others, other_weights) = bits_of(straight), bits_of(folder)
    if losses != others:
        raise Fault(f"other losses: {[pair for pair in zip(losses, others) if pair[0] != pair[1]][:2]}, "
                    f"{len(losses)} and {len(others)} steps")
    if not filecmp.cmp(weights, other_weights, shallow=False):
        raise Fault("other weights")


def descendants(pid):
    """The processes below this one, whatever session they are in."""
    children = collections.defaultdict(list)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            stat = pathlib.Path("/proc", entry, "stat").read_text()
        except OSError:  # it has ended
            continue
        children[int(stat.rpartition(")")[2].split()[1])].append(int(entry))
    found = list(children[pid])
    for child in found:  # grows
        found += children[child]
    return found


def is_alive(pid):
    try:
        return pathlib.Path("/proc", str(pid), "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def kill(pid, how):
    try:
        os.kill(pid, how)
    except ProcessLookupError:  # it has just ended
        pass


def name_of(pid):
    try:
        return pathlib.Path("/proc", str(pid), "comm").read_text().strip()
    except OSError:
        return ""
