"""What each kernel of a CUDA build uses, read from its machine code, and compared with a committed baseline.

    python dev/test/cuda_table.py OBJECT… [--cuobjdump PROGRAM] [--write]

Prints a line a kernel and architecture: registers, stack frame, static shared
memory, local loads and stores, accesses of 16 bytes to device memory, tensor-core products, asynchronous copies to shared
memory (cp.async and TMA), registers that warpgroups give up to and take.  Fails if a kernel has more of a stack frame or
of local accesses than the baseline (dev/test/cuda_baseline.tsv) allows, no products, copies or wide accesses where the
baseline has some, other registers of its roles, or is not in it (new: the line has its registers and spills), and if a
kernel of these objects that the baseline has is gone; --write makes these rows of the baseline anew.  Fails also at an instruction that compares two pairs of numbers and keeps both
answers in one predicate: ptxas 13.0 makes it of code that needs both, and an H200 was seen to take the wrong one.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

BASELINE = Path(__file__).parent / "cuda_baseline.tsv"
COLUMNS = ("registers", "stack", "shared", "local_loads", "local_stores", "wide", "products", "copies", "gives", "takes")
NO_MORE = ("stack", "local_loads", "local_stores")
NOT_NONE = ("wide", "products", "copies")
REGISTERS = ("gives", "takes")  # what roles of a kernel give up to or take: as planned, to the register
INSTRUCTIONS = {  # of sm_80 and newer
    "local_loads": r"\bLDL\b",
    "local_stores": r"\bSTL\b",
    "wide": r"\b(?:LDG|STG)\.E\S*\.128\b",
    "products": r"\s[HIQ]G?MMA\b",  # not HFMA2.MMA, a way to write a constant
    "copies": r"\bLDGSTS\b|\bUTMALDG\b",
    "gives": r"\bUSETMAXREG\.DEALLOC\S*\s+(?:\w+,\s)?0x[0-9a-f]+",
    "takes": r"\bUSETMAXREG\.(?:TRY_)?ALLOC\S*\s+(?:\w+,\s)?0x[0-9a-f]+",
    "one_answer": r"\bVIMNMX\S*16x2\S*\s+\w+, (?P<answer>P[0-6]), (?P=answer)\b",
}
Table = dict[tuple[str, str], dict[str, int]]  # (architecture, kernel) → column → value


def run(*command: str | Path) -> str:
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def readable(mangled: list[str]) -> dict[str, str]:
    """Names as the source has them, without argument types and the unnamed namespace's hash."""
    lines = subprocess.run(["c++filt"], input="\n".join(mangled), check=True, capture_output=True, text=True).stdout
    names = {}
    for name, text in zip(mangled, lines.splitlines()):
        text = re.sub(r"^void |\(anonymous namespace\)::|_GLOBAL__N__\w+::", "", text)
        text = re.sub(r"\((?:int|bool)\)", "", text)
        names[name] = re.sub(r"\(.*\)$", "", text)
    return names


def per_function(cuobjdump: str, option: str, path: Path, interesting: str) -> Iterator[tuple[tuple[str, str], re.Match]]:
    """The lines of cuobjdump's output that hold `interesting`, with the architecture and the kernel they belong to."""
    arch = function = ""
    for line in run(cuobjdump, option, path).splitlines():
        if match := re.match(r"\s*arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function\s?:?\s(\w+)", line):
            function = match[1]
        elif match := re.search(interesting, line):
            yield (arch, function), match


def stem(path: Path) -> str:
    return path.name.removesuffix(".cu.o")


def read_object(cuobjdump: str, path: Path) -> Table:
    table: Table = {}
    for kernel, used in per_function(cuobjdump, "--dump-resource-usage", path, r"REG:(\d+) STACK:(\d+) SHARED:(\d+)"):
        table[kernel] = dict.fromkeys((*COLUMNS, "one_answer"), 0) | dict(zip(COLUMNS, map(int, used.groups())))
    any_of_them = "|".join(f"(?P<{column}>{pattern})" for column, pattern in INSTRUCTIONS.items())
    for kernel, instruction in per_function(cuobjdump, "-sass", path, any_of_them):
        column = instruction.lastgroup
        if column in REGISTERS:
            table[kernel][column] = max(table[kernel][column], int(instruction[0].split("0x")[-1], 16))
        else:
            table[kernel][column] += 1
    names = readable(sorted({function for _, function in table}))
    return {(arch, f"{stem(path)}: {names[function]}"): row
            for (arch, function), row in table.items()}


def read_baseline() -> Table:
    table: Table = {}
    for line in BASELINE.read_text().splitlines()[1:] if BASELINE.exists() else []:
        arch, kernel, *values = line.split("\t")
        table[arch, kernel] = dict(zip(COLUMNS, map(int, values)))
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description="What each kernel of a CUDA build uses, compared with a baseline.")
    parser.add_argument("objects", type=Path, nargs="+")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--write", action="store_true", help="make these rows of the baseline anew")
    args = parser.parse_args()
    table: Table = {}
    for path in sorted(args.objects):
        table |= read_object(args.cuobjdump, path)
    if not table:
        sys.exit("FAIL: no kernel in these objects")

    print(f"{'arch':8} {'kernel':78} " + " ".join(f"{column:>12}" for column in COLUMNS))
    for (arch, kernel), row in sorted(table.items()):
        print(f"{arch:8} {kernel:78.78} " + " ".join(f"{row[column]:12}" for column in COLUMNS))
    baseline = read_baseline()
    files, architectures = {stem(path) for path in args.objects}, {arch for arch, _ in table}
    if args.write:
        others = {key: row for key, row in baseline.items() if key[0] not in architectures or key[1].split(":")[0] not in files}
        baseline = others | table
        lines = ["\t".join((*key, *(str(row[c]) for c in COLUMNS))) for key, row in sorted(baseline.items())]
        BASELINE.write_text("\n".join(["\t".join(("arch", "kernel", *COLUMNS)), *lines]) + "\n")

    same = worse = new = gone = 0
    for key, row in sorted(table.items()):
        name = f"{key[0]} {key[1]}"
        if row["one_answer"]:
            print(f"FAIL {name}: VIMNMX keeps both of its answers in one predicate")
            worse += 1
        elif key not in baseline:
            print(f"FAIL {name} is not in {BASELINE.name}: {spills(row)}: look at its line, then --write")
            new += 1
        elif changes := changed_columns(baseline[key], row):
            for column in changes:
                print(f"FAIL {name}: {column} {baseline[key][column]} before, {row[column]} now")
            worse += 1
        else:
            same += 1
    for arch, kernel in sorted(baseline.keys() - table.keys()):
        if arch in architectures and kernel.split(":")[0] in files:
            print(f"FAIL {arch} {kernel} is in {BASELINE.name}, but gone: --write")
            gone += 1
    print(f"{same} kernels as the baseline has them, {new} new, {gone} gone, {worse} worse")
    sys.exit(new + gone + worse > 0)


def spills(row: dict[str, int]) -> str:
    """A kernel's registers, and what it keeps in local memory for lack of them."""
    used = [f"{row['registers']} registers"] + [f"{c.replace('_', ' ')} {row[c]}" for c in NO_MORE if row[c]]
    return ", ".join(used) if len(used) > 1 else f"{used[0]}, no stack"


def changed_columns(before: dict[str, int], now: dict[str, int]) -> list[str]:
    """The columns in which a kernel has become worse."""
    return [c for c in NO_MORE if now[c] > before[c]] + [c for c in NOT_NONE if before[c] and not now[c]] + \
        [c for c in REGISTERS if now[c] != before.get(c, 0)]


if __name__ == "__main__":
    main()
