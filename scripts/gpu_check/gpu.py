"""Describes the GPU that a program sees first, as nvidia-smi does, or the software GPU."""

import os
import shutil
import subprocess

os.environ.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # nvidia-smi's order, so that both mean the same GPU by a number


def number():
    """Returns a number or a UUID for `nvidia-smi -i`, or None if CUDA_VISIBLE_DEVICES hides all GPUs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if visible in ("", "-1"):
        return None
    return "0" if visible.startswith("MIG") else visible  # nvidia-smi takes no slice of a GPU here: all of them are alike


def query(*names):
    """Returns the values of these properties (`nvidia-smi --help-query-gpu`) as texts, or None without a GPU."""
    if number() is None:
        return None
    try:
        said = subprocess.run(
            ["nvidia-smi", "-i", number(), "--query-gpu=" + ",".join(names), "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            check=True,
            timeout=30,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return None
    values = [value.strip() for value in said.splitlines()[0].split(",")] if said.strip() else []
    return values if len(values) == len(names) else None


class Gpu:
    """Holds the name, the architecture for make (90a), the memory in GiB and the driver's version."""

    def __init__(self, values):
        self.name, capability, memory, self.driver = values
        self.capability = capability.replace(".", "")  # 90
        self.arch = self.capability + ("a" if int(self.capability) >= 90 else "")  # code that only this generation runs
        try:
            self.gib = float(memory) / 1024
        except ValueError:
            self.gib = 0  # N/A: it shares the host's memory, or is a slice; small shapes are tried then

    def state(self):
        """Returns clocks and power of this moment, for the heading of the page."""
        values = query("clocks.sm", "clocks.mem", "power.draw", "temperature.gpu")
        return "clocks and power unknown" if values is None else "SM {} MHz, memory {} MHz, {} W, {} C".format(*values)


def software():
    """Returns the H100 that dev/softgpu executes on a CPU, or None without an nvcc on PATH, in CUDA_HOME or /usr/local/cuda."""
    home = os.environ.get("CUDA_HOME")
    places = (f"{home}/bin/nvcc",) if home else ("nvcc", "/usr/local/cuda/bin/nvcc")
    return Gpu(["the software GPU, an H100", "9.0", "8192", "none"]) if any(map(shutil.which, places)) else None


def find():
    """Returns the GPU that nvidia-smi names, or None."""
    values = query("name", "compute_cap", "memory.total", "driver_version")
    return None if values is None else Gpu(values)
