"""FP8 training's arithmetic, exact to the bit: which operands a recipe's products have, and how they are quantized.

A linear layer Y[N,OC] = X[N,IC] W[OC,IC]^T has three products, each out[R,S] = sum over k of a[R,k] b[S,k] in fp32:

    forward   a = X[N,IC]      b = W[OC,IC]      out = Y[N,OC]
    dgrad     a = dY[N,OC]     b = W^T[IC,OC]    out = dX[N,IC]
    wgrad     a = dY^T[OC,N]   b = X^T[IC,N]     out = dW[OC,IC]

An operand is quantized from bf16, in groups that share a scale:

    amax = max |x|                            over the group's bf16 values, in fp32
    scale = fp32(fp8_max / max(amax, 1e-12))  divided in fp64; with pow2, its mantissa's bits cleared: rounded down
    q = fp8(clamp(fp32(x) * scale))           rounded to nearest even, saturating; -0 stays -0
    inverse = fp32(1 / scale)                 what the product multiplies by

Groups: "tensor" all of it, "row" a row (that is along the product's k), "1x128" 128 entries of a row, "128x128" a
square.  At the edges of a matrix groups are partial.  Delayed scaling takes its scale from former steps: DelayedScale.
"""

import json
from dataclasses import asdict, dataclass, fields

import torch
from torch import Tensor

BF16 = torch.bfloat16
FORMATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2}
MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
SMALLEST_AMAX = 1e-12
BLOCK = 128

PRODUCTS = ("qkv", "o", "gate_up", "down")  # of a block; q, k, v are one operand, gate (first) and up are another
DIRECTIONS = {  # the sources of a and b, and whether they are transposed
    "forward": (("x", False), ("w", False)),
    "dgrad": (("dy", False), ("w", True)),
    "wgrad": (("dy", True), ("x", True))}
GROUPS: dict[str, dict[str, tuple[str, str] | None]] = {  # of a and b; None: a bf16 product
    "tensorwise": dict.fromkeys(DIRECTIONS, ("tensor", "tensor")),
    "delayed": dict.fromkeys(DIRECTIONS, ("tensor", "tensor")),
    "rowwise": dict.fromkeys(DIRECTIONS, ("row", "row")),
    "rowwise-hp-wgrad": {"forward": ("row", "row"), "dgrad": ("row", "tensor"), "wgrad": None},
    "blockwise": {"forward": ("1x128", "128x128"), "dgrad": ("1x128", "128x128"), "wgrad": ("1x128", "1x128")}}

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Quantization:
    """The entry `quantization` of recipe.json and settings.json, of the same keys."""

    recipe: str
    gradient: str  # format of dY: e5m2 or e4m3; all else is e4m3
    pow2: bool  # scales are powers of two
    skip: tuple[str, ...] = ()  # products that stay bf16 in all directions: "down", or "layers.3.down" of one block
    history: int = 1024  # delayed: steps that are remembered
    algorithm: str = "max"  # delayed: of the history, or "latest": its last entry
    margin: int = 0  # delayed: scales are 2^margin smaller
    head: str = "off"  # the head's products in FP8: off, backward (dgrad and wgrad) or on (all)

    def __post_init__(self) -> None:
        by_history = self.recipe == "delayed"
        problems = [
            (self.recipe not in GROUPS, f"recipe {self.recipe!r}: expected {', '.join(GROUPS)}"),
            (self.gradient not in FORMATS, f"gradient {self.gradient!r}: expected {', '.join(FORMATS)}"),
            (self.gradient == "e5m2" and self.recipe not in ("tensorwise", "delayed"),
             f"gradient e5m2: {self.recipe} takes e4m3 only"),
            (not isinstance(self.pow2, bool), f"pow2 {self.pow2!r}: expected true or false"),
            (any(name.split(".")[-1] not in PRODUCTS for name in self.skip), f"skip {self.skip}: expected {PRODUCTS}"),
            (self.history < 1, f"history {self.history}: expected 1 or more"),
            (self.algorithm not in ("max", "latest"), f"algorithm {self.algorithm!r}: expected max or latest"),
            (self.head not in ("off", "backward", "on"), f"head {self.head!r}: expected off, backward or on"),
            (not by_history and (self.history, self.algorithm, self.margin) != (1024, "max", 0),
             f"history, algorithm and margin belong to delayed, not to {self.recipe}")]
        for wrong, words in problems:
            if wrong:
                raise ValueError(f"quantization: {words}")

    @staticmethod
    def of(options: dict) -> "Quantization":
        """From `recipe` and what differs from its defaults."""
        unknown = options.keys() - {field.name for field in fields(Quantization)}
        if unknown or "recipe" not in options:
            raise ValueError(f"quantization: {', '.join(sorted(unknown)) or 'no recipe'}: expected recipe, and of "
                             f"{', '.join(field.name for field in fields(Quantization)[1:])} what is not the default")
        by_tensor = options["recipe"] in ("tensorwise", "delayed")
        defaults = {"gradient": "e5m2" if by_tensor else "e4m3", "pow2": not by_tensor}
        return Quantization(**(defaults | options | {"skip": tuple(options.get("skip", ()))}))

    @staticmethod
    def parse(text: str) -> "Quantization | None":
        """A command line's: "off", a recipe's name, or an object {"recipe": …}."""
        return None if text == "off" else Quantization.of(json.loads(text) if text[0] == "{" else {"recipe": text})

    def json(self) -> dict:
        return asdict(self) | {"skip": list(self.skip)}

    def groups(self, product: str, direction: str) -> tuple[str, str] | None:
        """`product` is layers.{l}.{p}."""
        skipped = product in self.skip or product.split(".")[-1] in self.skip
        return None if skipped else GROUPS[self.recipe][direction]

    def of_head(self) -> "Quantization":
        """The settings of the head's operands: each has one scale, of its amax, but head_gradient_scale() gives dY's."""
        return Quantization("tensorwise", "e5m2", self.pow2)

    def format_of(self, source: str) -> torch.dtype:
        return FORMATS[self.gradient if source == "dy" else "e4m3"]


# ---------------------------------------------------------------------------------------------- quantizing


def amax_of(x: Tensor, groups: str) -> Tensor:
    """max |x[R,K]| of each group, fp32: () of "tensor", (R) of "row", (R, K/128) of "1x128", (R/128, K/128) of
    "128x128", rounded up.  Without their signs bf16's bits are ordered as the numbers are, then infinity, then NaN."""
    R, K = x.shape
    magnitude = x.view(torch.int16) & 0x7FFF
    if groups == "tensor":
        most = magnitude.amax()
    elif groups == "row":
        most = magnitude.amax(1)
    else:
        blocks = torch.nn.functional.pad(magnitude, (0, -K % BLOCK, 0, -R % BLOCK)).unflatten(1, (-1, BLOCK)).amax(2)
        most = blocks[:R] if groups == "1x128" else blocks.unflatten(0, (-1, BLOCK)).amax(1)
    return most.view(BF16).float()


def power_of_two(scale: Tensor) -> Tensor:
    """Sign and exponent of an fp32, the mantissa's bits cleared."""
    return (scale.view(torch.int32) & ~0x7FFFFF).view(torch.float32)


def scale_of(amax: Tensor, format: torch.dtype, pow2: bool) -> Tensor:
    scale = (MAX[format] / amax.double().clamp(min=SMALLEST_AMAX)).float()
    return power_of_two(scale) if pow2 else scale


def head_gradient_scale(labels: int) -> Tensor:
    """The scale of the gradients of the logits, which are hardly larger than 1 / labels: a factor of 2 is left."""
    return torch.tensor(MAX[FORMATS["e5m2"]] / 2 * labels, dtype=torch.float64).float()


def spread(scale: Tensor, groups: str, shape: torch.Size) -> Tensor:
    """A group's scale for each entry of x[R,K], as far as broadcasting does not do it."""
    if groups == "row":
        return scale[:, None]
    if groups == "128x128":
        scale = scale.repeat_interleave(BLOCK, 0)[: shape[0]]
    return scale.repeat_interleave(BLOCK, 1)[:, : shape[1]] if "128" in groups else scale


@dataclass
class Operand:
    """data (R,K), K contiguous or not, in FP8 with the inverse scales of its groups; else in bf16."""

    data: Tensor
    groups: str | None = None
    inverse: Tensor | None = None
    decoded: Tensor | None = None  # what values() gave

    def transposed(self) -> "Operand":
        """Of groups that are as high as wide, or of bf16: the same bytes, the same scales."""
        assert self.groups in ("tensor", "128x128", None)
        inverse = self.inverse.t() if self.groups == "128x128" else self.inverse
        return Operand(self.data.t(), self.groups, inverse, None if self.decoded is None else self.decoded.t())

    def values(self, dtype: torch.dtype) -> Tensor:
        """Without the scales of "tensor" and "row", with those of blocks, which float64 holds exactly."""
        if self.decoded is None or self.decoded.dtype != dtype:
            self.decoded = values_of(self.data, dtype)
            if self.groups in ("1x128", "128x128"):
                self.decoded *= spread(self.inverse.to(dtype), self.groups, self.data.shape)
        return self.decoded


def quantize(x: Tensor, format: torch.dtype, groups: str, pow2: bool, scale: Tensor | None = None,
             name: str = "x") -> Operand:
    """x[R,K] bf16; `scale` is that of delayed scaling."""
    amax = amax_of(x, groups)
    if not amax.isfinite().all():
        raise ValueError(f"{name} holds {x[~x.isfinite()][0].item()}, which has no scale")
    if scale is None:
        scale = scale_of(amax, format, pow2)
    # Of a value that is too large, PyTorch's cast to e5m2 on a CPU makes infinity.
    q = (x.float() * spread(scale, groups, x.shape)).clamp_(-MAX[format], MAX[format]).to(format)
    return Operand(q, groups, 1 / scale)


def values_of(data: Tensor, dtype: torch.dtype) -> Tensor:
    """The numbers that FP8 or bf16 stand for.  Via fp16, of which e5m2 is the upper byte, and e4m3 has the exponent
    moved by 8: PyTorch's own conversion takes up to 5 times as long."""
    if data.dtype == FORMATS["e5m2"]:
        return (data.view(torch.int8).to(torch.int16) << 8).view(torch.float16).to(dtype)
    if data.dtype == FORMATS["e4m3"]:
        half = (data.view(torch.int8).to(torch.int16) << 7) & ~0x4000  # of two copies of the sign the lower is cleared
        return half.view(torch.float16).to(dtype).mul_(256)
    return data.to(dtype)


def product(a: Operand, b: Operand, dtype: torch.dtype) -> Tensor:
    """out[R,S] = sum over k of a[R,k] b[S,k] * inverse_a * inverse_b, in dtype.  Scales that are the same along k
    multiply the sum."""
    out = a.values(dtype) @ b.values(dtype).t()
    if a.groups in ("tensor", "row"):
        out *= a.inverse.to(dtype)[..., None]
    if b.groups in ("tensor", "row"):
        out *= b.inverse.to(dtype)
    return out


# ---------------------------------------------------------------------------------------------- a layer's products


class DelayedScale:
    """The scale of one tensor of one layer (x, w or dy) from the largest values of former steps.

    An entry of the history is one step's amax, over all its micro-batches and all ranks.  Step 0 has none before it and
    takes current scaling, of an amax over all ranks; that scale is not kept.  While the amax that counts is 0, the last
    scale stays: at first 1.
    """

    def __init__(self, format: torch.dtype, settings: Quantization) -> None:
        self.format, self.settings = format, settings
        self.history: list[float] = []
        self.last = torch.tensor(1.0)

    def scale(self) -> Tensor | None:
        """Of the step that begins; None: current scaling, with an amax over all ranks of each micro-batch."""
        return self.last if self.history else None

    def end_step(self, amax: float) -> None:
        s = self.settings
        self.history = (self.history + [amax])[-s.history:]
        amax = max(self.history) if s.algorithm == "max" else self.history[-1]
        if amax > 0:
            wide = torch.tensor(MAX[self.format] * 2.0**-s.margin, dtype=torch.float64) / amax
            scale = wide.float().clamp(max=torch.finfo(torch.float32).max)
            self.last = power_of_two(scale) if s.pow2 else scale


class Operands:
    """The operands of one layer in one micro-batch, quantized when asked for.  `sources` has x[N,IC], w[OC,IC] and,
    once it is known, dy[N,OC]; `scales` what delayed scaling gives for them."""

    def __init__(self, name: str, settings: Quantization | None, sources: Tensors,
                 scales: dict[str, Tensor | None] | None = None) -> None:
        self.name, self.settings, self.sources, self.scales = name, settings, sources, scales or {}
        self.kept: dict[tuple[str, str | None], Operand] = {}

    def pair(self, direction: str) -> tuple[Operand, Operand]:
        """a and b."""
        groups = self.settings.groups(self.name, direction) if self.settings else None
        (a, b), (groups_a, groups_b) = DIRECTIONS[direction], groups or (None, None)
        return self.operand(*a, groups_a), self.operand(*b, groups_b)

    def operand(self, source: str, transposed: bool, groups: str | None) -> Operand:
        x = self.sources[source]
        if groups in ("row", "1x128"):  # along k: another k has other scales
            return self.quantized(source, x.t().contiguous() if transposed else x, groups)
        if (source, groups) not in self.kept:
            self.kept[source, groups] = self.quantized(source, x, groups) if groups else Operand(x)
        kept = self.kept[source, groups]
        return kept.transposed() if transposed else kept

    def quantized(self, source: str, x: Tensor, groups: str) -> Operand:
        s = self.settings
        return quantize(x, s.format_of(source), groups, s.pow2, self.scales.get(source), f"{self.name}.{source}")


def recorded(operands: Operands, direction: str, out: Tensor) -> Tensors:
    """What operands.safetensors holds of one product: a, b, out, and scale_a, scale_b (inverse) where it is FP8."""
    stem = f"{operands.name}.{direction}"
    a, b = operands.pair(direction)
    tensors = {"a": a.data, "b": b.data, "scale_a": a.inverse, "scale_b": b.inverse, "out": out}
    return {f"{stem}.{part}": tensor.clone(memory_format=torch.contiguous_format)
            for part, tensor in tensors.items() if tensor is not None}
