"""Tells how the main loops of the hot kernels use the units of a multiprocessor, from their machine code.

    python dev/bench/kernel_budget.py OBJECT… [--cuobjdump PROGRAM] [--nvcc RELEASE] [--all] [--write]

A multiprocessor has four sub-partitions with a scheduler each, and a warp of each warpgroup runs on each of them. A row
tells, for one tile (one turn of the main loop of all warpgroups of a block), the clocks that a sub-partition's units need:
the issue of instructions, tensor cores, MUFU (exponentials), FMA, ALU, and shared memory and device memory, which the
sub-partitions share. The largest is the least that a tile can take. `simulated` is the time of a tile if these instructions
are issued in order: with the stalls that the compiler wrote into them, the waits for the results of earlier ones, and one
tensor core that takes products in order. Kernels without tensor cores are not simulated (0): more blocks hide their waits,
and `memory` should be their limit.

The last column is the order of the loop: its waits and barriers, and between them the number of products (T), exponentials
(M), loads (L) and stores (S) of device memory. The program fails if a kernel has more instructions than the baseline
(dev/bench/kernel_budget.tsv) allows, or another order. It compares nothing if another release of nvcc made the objects.
--write makes the baseline anew; --all fails, too, if a hot kernel of a compiled architecture is in none of the objects.
"""

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from kernel_loop import LOADS, STORES, bytes_of, functions, main_loop, order_of
from kernel_simulator import simulate

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))
from cuda_table import readable, stem  # noqa: E402

BASELINE = Path(__file__).with_suffix(".tsv")
UNITS = ("issue", "tensor", "mufu", "fma", "alu", "shared", "memory")
COLUMNS = ("arch", "kernel", "instructions", *UNITS, "simulated", "order")


@dataclass(frozen=True)
class Hot:
    """A kernel, and where its work is."""

    warps: int  # of a block, that compute and share a sub-partition
    loop: str  # the letters (order_of) of what its main loop has: the smallest such loop is meant; "": all of the kernel
    products: int = 0  # of a warp and tile, where the compiler left loops within the main loop
    brought: int = 0  # bytes that TMA writes into shared memory for a tile


HOPPER = {f"attention_hopper_{name}: attention_hopper_{name}_kernel<{size}>":
          Hot(3 if (name, size) == ("forward", 64) else 2, "TM", brought=2 * 2 * size * rows)
          for name, size, rows in (("forward", 128, 128), ("forward", 64, 128), ("dq", 128, 64), ("dq", 64, 128),
                                   ("dkv", 128, 64), ("dkv", 64, 64))}
MMA = {f"attention_mma_{name}: attention_mma_{name}_kernel<{sizes}>": Hot(warps, "TM", products)
       for name, sizes, warps, products in (
           ("forward", "128, false", 1, 256), ("forward", "64, false", 1, 256), ("dq", "128", 1, 192), ("dq", "64", 2, 96),
           ("dkv", "128, 8, 64", 2, 256), ("dkv", "64, 8, 64", 2, 128))}
MEMORY = {name: Hot(1, loop) for name, loop in (
    ("accumulate: accumulate_kernel<bf16, false>", ""), ("adamw: adamw_kernel<bf16, float, false>", "LS"),
    ("classifier: classifier_kernel<bf16, 1024>", "LMS"), ("embedding: embedding_backward_kernel<bf16, 8>", "L"),
    ("global_norm: squares_kernel", "L"), ("quantize: amax_kernel<PlainSource, 8>", "L"),
    ("quantize: amax_kernel<SwigluBackwardSource, 8>", "LM"),
    ("quantize: quantize_kernel<PlainSource, 8>", "L"), ("quantize: quantize_kernel<RmsnormSource, 8>", "L"),
    ("quantize: quantize_kernel<SwigluSource, 8>", "L"), ("quantize: transpose_kernel", ""),
    ("rmsnorm: rmsnorm_backward_kernel<bf16, 8, 1>", ""),
    ("rmsnorm: rmsnorm_forward_kernel<bf16, 8, 1, 1>", ""), ("rope: rope_kernel<bf16, 8, false>", "LS"),
    ("swiglu: swiglu_backward_kernel<bf16, 8>", "LS"), ("swiglu: swiglu_forward_kernel<bf16, 8>", "LS"))}
HOT = {"sm_90a": HOPPER | MEMORY, "sm_80": MMA}

# Clocks of a sub-partition for an instruction of a warp: 32 over the lanes of the unit ("Throughput of Native Arithmetic
# Instructions" in the CUDA C++ Programming Guide). FP32 has 16 lanes of a sub-partition on sm_80, 32 on sm_90.
FP32 = {"sm_80": 2, "sm_90a": 1}
MUFU, ALU, IMAD = 8, 2, 2
FLOPS = {"sm_80": 512, "sm_90a": 1024}  # of a sub-partition's tensor core in bf16
MEMORY_BYTES = {"sm_80": 13.4, "sm_90a": 14.5}  # of a multiprocessor, each clock: 2.04 TB/s over 108, 3.35 TB/s over 132
SHARED_BYTES = 128
OTHERS = ("U", "BRA", "BAR", "SYNC", "WARP", "S2", "NOP", "DEPBAR", "LDGDEPBAR", "LDC", "R2UR", "EXIT", "FENCE")


def measure(i, arch):
    """Fills in the unit of an instruction and what it costs there and elsewhere."""
    s = i.stem
    if s == "HGMMA":  # of a warpgroup: each sub-partition computes 16 of the 64 rows
        n, k = map(int, re.search(r"64x(\d+)x(\d+)", i.name).groups())
        from_shared = 2 * n * k + (0 if re.match(r" *R\d+, R\d", i.operands) else 2 * 64 * k)
        i.unit = "tensor"
        i.clocks = {"tensor": 2 * 16 * n * k / FLOPS[arch], "shared": from_shared / SHARED_BYTES}
    elif s == "HMMA":
        m, n, k = (16, 8, 16) if ".16816" in i.name else (16, 8, 8)
        i.unit, i.clocks = "tensor", {"tensor": 2 * m * n * k / FLOPS[arch]}
    elif s in ("MUFU", "F2I", "I2F", "POPC", "FLO"):
        i.unit, i.clocks = "mufu", {"mufu": MUFU}
    elif s in ("FFMA", "FMUL", "FADD", "HFMA2", "HMUL2", "HADD2"):
        i.unit, i.clocks = "fma", {"fma": FP32[arch]}
    elif s == "IMAD":
        i.unit, i.clocks = "fma", {"fma": IMAD}
    elif s in ("LDS", "STS", "LDSM", "STSM", "SHFL", "ATOMS"):
        matrices = int(re.search(r"\.M88\.(\d)", i.name)[1]) if re.search(r"\.M88\.\d", i.name) else 1
        lanes = 4 * matrices if s in ("LDSM", "STSM") else bytes_of(i.name)
        i.unit, i.clocks = "shared", {"shared": 4 * 32 * lanes / SHARED_BYTES}  # the same of each sub-partition
    elif s == "LDGSTS":  # tiles, which come from L2 but for the first block that reads them
        i.clocks = {"shared": 4 * 32 * bytes_of(i.name) / SHARED_BYTES}
    elif s in LOADS + STORES and not s.startswith("UTMA"):
        i.unit, i.clocks = "memory", {"memory": 4 * 32 * bytes_of(i.name) / MEMORY_BYTES[arch]}
    elif not s.startswith(OTHERS):
        i.unit, i.clocks = "alu", {"alu": ALU}
    i.clocks["issue"] = 1


def budget(code, arch, hot):
    for i in code:
        measure(i, arch)
    path = main_loop(code, hot.loop, hot.products)
    # TMA writes while products read: each product bears the same part.
    wgmmas = [i for i in path if i.stem == "HGMMA"]
    for i in wgmmas:
        i.clocks["shared"] += hot.brought / SHARED_BYTES / hot.warps / len(wgmmas)
    row = {unit: round(hot.warps * sum(i.clocks.get(unit, 0) for i in path)) for unit in UNITS}
    simulated = round(simulate(path, hot.warps)) if row["tensor"] else 0
    return row | {"instructions": len(path), "simulated": simulated, "order": order_of(path)}


def read_baseline():
    """The release of nvcc that made it, and its rows."""
    first, _, *lines = BASELINE.read_text().splitlines() if BASELINE.exists() else ["", ""]
    rows = [dict(zip(COLUMNS, line.split("\t"))) for line in lines]
    return first.removeprefix("# nvcc "), {
        (row["arch"], row["kernel"]): {c: v if c in COLUMNS[:2] + ("order",) else int(v) for c, v in row.items()}
        for row in rows}


def write_baseline(release, table):
    rows = [table[key] for key in sorted(table) if key[1] in HOT.get(key[0], {})]
    lines = ["\t".join(str(row[c]) for c in COLUMNS) for row in rows]
    BASELINE.write_text("\n".join([f"# nvcc {release}", "\t".join(COLUMNS), *lines]) + "\n")


def worse(row, before):
    """Returns the ways in which a row is worse than the baseline's, as texts."""
    if before is None:
        return [f"is not in {BASELINE.name}: look at its line, then --write"]
    found = []
    if row["instructions"] > before["instructions"]:
        found.append(f"{before['instructions']} instructions before, {row['instructions']} now")
    if row["order"] != before["order"]:
        found.append(f"its order has changed\n     before  {before['order']}\n     now     {row['order']}")
    return found


def read_objects(args):
    """The rows of the hot kernels in these objects. Ends the program if one is missing that should be there."""
    table, archs, stems = {}, set(), {stem(path) for path in args.objects}
    for path in sorted(args.objects):
        found = functions(args.cuobjdump, path)
        names = readable([name for _, name, _ in found])
        for arch, name, code in found:
            kernel = f"{stem(path)}: {names[name]}"
            archs.add(arch)
            if kernel in HOT.get(arch, {}):
                table[arch, kernel] = {"arch": arch, "kernel": kernel} | budget(code, arch, HOT[arch][kernel])
    for arch in sorted(archs & HOT.keys()):
        for kernel in HOT[arch]:
            if (args.all or kernel.split(":")[0] in stems) and (arch, kernel) not in table:
                sys.exit(f"FAIL: {arch} {kernel} is in none of these objects, and {Path(__file__).name} names it")
    return table


def main():
    parser = argparse.ArgumentParser(description="How main loops use the units of a multiprocessor, compared with a baseline.")
    parser.add_argument("objects", type=Path, nargs="+")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    parser.add_argument("--nvcc", default="", help="its release")
    parser.add_argument("--all", action="store_true", help="fail if a hot kernel of these architectures is missing")
    parser.add_argument("--write", action="store_true", help="make the baseline anew")
    args = parser.parse_args()
    table = read_objects(args)
    rows = [table[key] for key in sorted(table)]
    print(f"{'arch':7} {'kernel':60} " + " ".join(f"{c:>12}" for c in COLUMNS[2:-1]) + "  limit    order")
    for row in rows:
        limit = max(UNITS, key=lambda unit: row[unit])
        cells = " ".join(f"{row[c]:12}" for c in COLUMNS[2:-1])
        print(f"{row['arch']:7} {row['kernel']:60.60} {cells}  {limit:7}  {row['order']}")
    release, baseline = read_baseline()
    if args.write:
        release, baseline = args.nvcc, baseline | table
        write_baseline(release, baseline)
    if args.nvcc != release:
        print(f"{len(rows)} main loops of nvcc {args.nvcc}; the baseline is of nvcc {release}, so nothing is compared")
        return
    bad = 0
    for row in rows:
        ways = worse(row, baseline.get((row["arch"], row["kernel"])))
        bad += bool(ways)
        for way in ways:
            print(f"FAIL {row['arch']} {row['kernel']}: {way}")
    print(f"{len(rows) - bad} main loops as the baseline has them, {bad} worse")
    sys.exit(bad > 0)


if __name__ == "__main__":
    main()
