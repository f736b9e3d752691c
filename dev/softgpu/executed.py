#!/usr/bin/env python3
"""Tells which kernels and instructions were executed on the software GPU:  dev/softgpu/executed.py FOLDER [--lines] [--opcodes]

    LLMC_SOFTGPU_EXECUTED=FOLDER dev/softgpu/run kernels/rope check      and other programs
    dev/softgpu/executed.py FOLDER                   the kernels: how many of their instructions were executed
    dev/softgpu/executed.py FOLDER --opcodes         also the opcodes, and how often each stands in the executed code
    dev/softgpu/executed.py FOLDER --lines           also the lines of the source that have code which nobody executed

FOLDER must be new for each build. Fails if a kernel of the programs was never launched. A program that ends by a signal or
_exit writes nothing.
"""
import collections
import subprocess
import sys
from pathlib import Path


class Kernel:
    def __init__(self):
        self.launches = set()  # (threads of a block, bytes of dynamic shared memory), as texts
        self.executed = {}  # index of an instruction: (its opcode, its place, whether it was executed)


def read(folder):
    kernels = collections.defaultdict(Kernel)
    for file in sorted(folder.iterdir()):
        index = 0
        for line in file.read_text().splitlines():
            kind, *words = line.split("\t")
            if kind == "kernel":
                kernel, index = kernels[words[0]], 0
            elif kind == "launch":
                kernel.launches.add(tuple(map(int, words)))
            else:
                before = kernel.executed.get(index, (0, 0, False))[2]
                kernel.executed[index] = (*words, before or kind == "executed")
                index += 1
    return kernels


def short_names(mangled):
    names = subprocess.run(["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True).stdout
    return [line.replace("(anonymous namespace)::", "").removeprefix("void ").split("(", 1)[0] for line in names.splitlines()]


def main():
    options, folders = [w for w in sys.argv[1:] if w.startswith("--")], [w for w in sys.argv[1:] if not w.startswith("--")]
    if len(folders) != 1 or not set(options) <= {"--lines", "--opcodes"} or not Path(folders[0]).is_dir():
        sys.exit(__doc__)
    kernels = read(Path(folders[0]))
    if not kernels:
        sys.exit(f"{folders[0]}: no program of the software GPU has written there")
    opcodes, lines, idle = collections.Counter(), collections.Counter(), 0
    for name, mangled in sorted(zip(short_names(list(kernels)), kernels)):
        kernel = kernels[mangled]
        done = sum(executed for _, _, executed in kernel.executed.values())
        for opcode, place, executed in kernel.executed.values():
            if executed:
                opcodes[opcode] += 1
            else:
                lines[place] += 1
        idle += not kernel.launches
        told = f"{done:6} of {len(kernel.executed):6} instructions" if kernel.launches else "never launched"
        print(f"{name:80} {told}")
    if "--opcodes" in options:
        for opcode, count in sorted(opcodes.items()):
            print(f"{opcode:60} {count:8}")
    if "--lines" in options:
        for place, count in sorted(lines.items()):
            print(f"{place:80} {count:6} instructions were not executed")
    total = sum(len(kernel.executed) for kernel in kernels.values())
    print(f"{len(kernels) - idle} of {len(kernels)} kernels were executed, {sum(opcodes.values())} of {total} instructions of "
          f"them, {len(opcodes)} opcodes")
    sys.exit(idle > 0)


if __name__ == "__main__":
    main()
