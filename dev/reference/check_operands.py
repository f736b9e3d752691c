"""Quantizes again what a program says it quantized, and compares: is every operand of every FP8 product the right one?

    python dev/reference/check_operands.py DIR

DIR holds `settings.json`, {"quantization": as in recipe.json}, and of a run's first steps (0, 1, 2 ...), of each
micro-batch and each rank a file `step{s}.micro{k}.rank{r}.safetensors` with

    layers.{l}.{p}.{x,w,dy}                                       of every step: the sources, bf16 (fp8.py has shapes)
    layers.{l}.{p}.{forward,dgrad,wgrad}.{a,b,scale_a,scale_b}    of the last step, if not of all: the operands, and the
                                                                  inverse scales that the product multiplied by
    layers.{l}.{p}.{forward,dgrad,wgrad}.out                      bf16 (wgrad fp32): the product; wgrad's of micro-batch
                                                                  k is the sum of 0 to k, and may be absent for k > 0

with p of qkv, o, gate_up, down.  What `skip` names may be absent, and so may operands and out of other bf16 products.
Operands and scales must be equal to the bit.  Delayed scaling is followed from step 0.  Exit code 1 if any differs.
"""

import json
import re
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from fp8 import BF16, DIRECTIONS, PRODUCTS, DelayedScale, Operands, Quantization, Tensors, amax_of, product, scale_of

FILE = re.compile(r"step(\d+)\.micro(\d+)\.rank(\d+)\.safetensors")
SOURCES = ("x", "w", "dy")
# Relative L2 errors of the product.  fp32: sums of some hundred terms in another order differ by 1e-7 or 2e-7.  bf16:
# rounding errs by 2^-8 / sqrt(3) of the power of two below, root mean square, which is 1.5e-3 to 1.8e-3 of entries as
# they come.
LIMITS = {torch.float32: 1e-6, BF16: 3e-3}


@dataclass
class Row:
    """Of the table: one product's direction."""

    operands: int = 0
    bytes: int = 0
    differing: int = 0
    formats: set[str] = field(default_factory=set)
    out: float = 0.0  # the largest error


class Invalid(Exception):
    """What cannot be compared."""


def format_name(dtype: torch.dtype) -> str:
    return {torch.float8_e4m3fn: "e4m3", torch.float8_e5m2: "e5m2", BF16: "bf16"}.get(dtype, str(dtype))


def difference(got: Tensor, want: Tensor) -> str:
    """Empty if the bytes are equal."""
    if got.dtype != want.dtype:
        return f"is {format_name(got.dtype)}, expected {format_name(want.dtype)}"
    if got.shape != want.shape:
        return f"has shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    bits = {1: torch.uint8, 2: torch.int16, 4: torch.int32}[want.element_size()]
    unequal = got.contiguous().view(bits) != want.contiguous().view(bits)
    if not unequal.any():
        return ""
    first = tuple(unequal.nonzero()[0].tolist())
    return (f"{int(unequal.sum())} of {unequal.numel()} differ, the first at {list(first)}: "
            f"{got[first].float().item():.9g}, expected {want[first].float().item():.9g}")


class Checker:
    def __init__(self, folder: Path) -> None:
        try:
            self.settings = Quantization.of(json.loads((folder / "settings.json").read_text())["quantization"])
        except (OSError, ValueError, KeyError) as error:
            raise Invalid(f"settings.json: {error}") from None
        self.files: dict[tuple[int, int, int], Path] = {
            tuple(map(int, match.groups())): path for path in folder.iterdir() if (match := FILE.fullmatch(path.name))}
        if not self.files:
            raise Invalid("no step{s}.micro{k}.rank{r}.safetensors")
        self.steps, self.micros, self.ranks = (range(max(key[i] for key in self.files) + 1) for i in range(3))
        missing = [f"step{s}.micro{k}.rank{r}.safetensors" for s in self.steps for k in self.micros for r in self.ranks
                   if (s, k, r) not in self.files]
        if missing:
            raise Invalid(f"missing: {', '.join(missing)}")
        self.rows: dict[tuple[str, str], Row] = defaultdict(Row)
        self.differences: list[str] = []
        self.delayed: dict[str, DelayedScale] = {}

    def report(self, file: str, name: str, words: str) -> None:
        if words:
            self.differences.append(f"{file}: {name} {words}")

    def sources(self, file: str, tensors: Tensors) -> dict[str, Tensors]:
        """By layer; those that must be there, or are."""
        layers = 1 + max((int(name.split(".")[1]) for name in tensors if name.startswith("layers.")), default=-1)
        if not layers:
            raise Invalid(f"{file} holds no layers.{{l}}.{{p}}.{{x,w,dy}}")
        result: dict[str, Tensors] = {}
        for layer in [f"layers.{l}.{p}" for l in range(layers) for p in PRODUCTS]:
            found = {source: tensors[f"{layer}.{source}"] for source in SOURCES if f"{layer}.{source}" in tensors}
            needed = self.settings.groups(layer, "forward") is not None
            if len(found) < len(SOURCES):
                if needed:
                    raise Invalid(f"{file}: {layer}: {', '.join(sorted(set(SOURCES) - found.keys()))} missing")
                continue
            (N, IC), (OC, _) = found["x"].shape, found["w"].shape
            if found["w"].shape != (OC, IC) or found["dy"].shape != (N, OC) or any(
                    t.dtype != BF16 for t in found.values()):
                raise Invalid(f"{file}: {layer}: expected bf16 x (N,IC), w (OC,IC), dy (N,OC): "
                              f"{', '.join(f'{s} {t.dtype} {tuple(t.shape)}' for s, t in found.items())}")
            result[layer] = found
        return result

    def check_step(self, step: int) -> None:
        loaded = {(k, r): load_file(self.files[step, k, r]) for k in self.micros for r in self.ranks}
        sources = {key: self.sources(self.files[step, *key].name, tensors) for key, tensors in loaded.items()}
        layers = sources[0, 0].keys()
        amaxes = {key: {f"{layer}.{source}": amax_of(x, "tensor") for layer, of_layer in by_layer.items()
                        for source, x in of_layer.items()} for key, by_layer in sources.items()}
        if self.settings.recipe == "delayed" and step == 0:
            self.delayed = {name: DelayedScale(self.settings.format_of(name.split(".")[-1]), self.settings)
                            for name in amaxes[0, 0]}
        for r in self.ranks:
            sums: Tensors = {}  # wgrad over the micro-batches
            for k in self.micros:
                # With no history yet, a micro-batch's amax is taken over all ranks.
                scales = {name: scale if (scale := delayed.scale()) is not None else
                          scale_of(torch.stack([amaxes[k, rank][name] for rank in self.ranks]).amax(),
                                   delayed.format, self.settings.pow2) for name, delayed in self.delayed.items()}
                for layer in layers:
                    operands = Operands(layer, self.settings, sources[k, r][layer],
                                        {source: scales.get(f"{layer}.{source}") for source in SOURCES})
                    for direction in DIRECTIONS:
                        self.check_product(step, k, r, operands, direction, loaded[k, r], sums)
        for name, delayed in self.delayed.items():
            delayed.end_step(max(of_file[name].item() for of_file in amaxes.values()))

    def check_product(self, step: int, k: int, r: int, operands: Operands, direction: str, tensors: Tensors,
                      sums: Tensors) -> None:
        stem, file = f"{operands.name}.{direction}", self.files[step, k, r].name
        there = {name for name in tensors if name.startswith(stem + ".")}
        quantized = self.settings.groups(operands.name, direction) is not None
        if not there and not (quantized and step == self.steps[-1]):
            return
        row = self.rows[operands.name.split(".")[-1], direction]
        try:
            a, b = operands.pair(direction)
        except ValueError as error:
            raise Invalid(f"{file}: {error}") from None
        wanted = {"a": a.data, "b": b.data} | ({"scale_a": a.inverse, "scale_b": b.inverse} if quantized else {})
        for part, want in wanted.items():
            got = tensors.get(f"{stem}.{part}")
            if got is None:
                self.report(file, f"{stem}.{part}", "is missing" if quantized else "")
                continue
            words = difference(got, want)
            self.report(file, f"{stem}.{part}", words)
            row.operands += 1
            row.bytes += want.numel() * want.element_size()
            row.differing += bool(words)
            if not part.startswith("scale"):
                row.formats.add(format_name(want.dtype))
        for name in there - {f"{stem}.{part}" for part in (*wanted, "out")}:
            self.report(file, name, "does not belong here")
        want = product(a, b, torch.float64)
        if direction == "wgrad":
            want = sums[stem] = sums[stem] + want if stem in sums else want
        needed = quantized and (direction != "wgrad" or k == 0)
        self.check_out(file, stem, direction, tensors.get(f"{stem}.out"), want, needed, row)

    def check_out(self, file: str, stem: str, direction: str, got: Tensor | None, want: Tensor, needed: bool,
                  row: Row) -> None:
        if got is None:
            return self.report(file, f"{stem}.out", "is missing" if needed else "")
        types = (torch.float32,) if direction == "wgrad" else (BF16, torch.float32)
        if got.dtype not in types or got.shape != want.shape:
            return self.report(file, f"{stem}.out", f"is {got.dtype} {tuple(got.shape)}, expected {types[0]} "
                               f"{tuple(want.shape)}")
        distance, norm = (got.double() - want).norm().item(), want.norm().item()
        error = distance / norm if norm > 0 else distance
        row.out = max(row.out, error)
        if not error <= LIMITS[got.dtype]:
            self.report(file, f"{stem}.out", f"errs by {error:.2e}, at most {LIMITS[got.dtype]:.0e} expected")

    def table(self) -> str:
        s = self.settings
        lines = [f"{s.recipe}, gradients {s.gradient}, scales {'powers of two' if s.pow2 else 'any'}; "
                 f"{len(self.steps)} steps, {len(self.micros)} micro-batches, {len(self.ranks)} ranks",
                 f"{'product':16} | operands, scales |      bytes | differ | formats    | out's error"]
        lines += [f"{p:7} {direction:8} | {row.operands:16} | {row.bytes:10} | {row.differing:6} | "
                  f"{', '.join(sorted(row.formats)):10} | {row.out:.1e}"
                  for (p, direction), row in sorted(self.rows.items(), key=lambda item: PRODUCTS.index(item[0][0]))]
        return "\n".join(lines)


def check_folder(folder: Path) -> Checker:
    """With every difference found."""
    checker = Checker(folder)
    for step in checker.steps:
        checker.check_step(step)
    if not any(row.operands for row in checker.rows.values()):
        raise Invalid("no operand of an FP8 product in any file")
    return checker


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    try:
        checker = check_folder(Path(sys.argv[1]))
    except Invalid as invalid:
        sys.exit(f"{sys.argv[1]}: {invalid}")
    print(checker.table())
    for line in checker.differences:
        print(line)
    sys.exit(len(checker.differences) > 0)


if __name__ == "__main__":
    main()
