"""Proves the emulation of FP8 training: its quantization against torchao's and plain arithmetic, to the bit; its model
against Hugging Face's; the dumps' operands; and that check_operands.py sees what it is for.

    python dev/reference/test_fp8.py
"""

import json
import logging
import math
import shutil
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import make_dump
from check_operands import Invalid, check_folder, difference
from compare_quantize import every_bf16, generator, hostile_tensors, random
from fp8 import (BF16, DIRECTIONS, FORMATS, GROUPS, MAX, PRODUCTS, SMALLEST_AMAX, DelayedScale, Operand, Operands,
                 Quantization, Tensors, amax_of, head_gradient_scale, power_of_two, product, quantize, recorded, scale_of, values_of)
from test_reference import DUMPS, check, setting

logging.disable(logging.WARNING)  # of torchao about PyTorch's newer ways
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torchao.float8 import Float8LinearConfig, float8_linear, float8_utils
    from torchao.float8.config import ScalingGranularity
    from torchao.float8.float8_scaling_utils import hp_tensor_to_float8_dynamic
    from torchao.prototype.blockwise_fp8_training import kernels as torchao_blocks
logging.disable(logging.NOTSET)

E4M3, E5M2 = FORMATS["e4m3"], FORMATS["e5m2"]
def bits(x: Tensor) -> Tensor:
    return x.contiguous().view({1: torch.uint8, 4: torch.int32}[x.element_size()])


def same(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(bits(a), bits(b))


# ---------------------------------------------------------------------------------------------- against arithmetic


def plain_fp8(x: np.ndarray, mantissa: int, least: int, largest: float) -> np.ndarray:
    """Rounded to nearest even, in float64, from what a format is: `mantissa` bits, the least exponent of a normal
    number, the largest value."""
    exponent = np.maximum(np.floor(np.log2(np.maximum(np.abs(x), 1e-300))), least)
    ulp = 2.0 ** (exponent - mantissa)
    return np.copysign(np.minimum(np.abs(np.round(x / ulp) * ulp), largest), x)


def test_numbers() -> None:
    x = torch.cat([every_bf16().flatten().float() * factor for factor in (1.0, 1.001, 0.37)])
    for name, (mantissa, least) in {"e4m3": (3, -6), "e5m2": (2, -14)}.items():
        format = FORMATS[name]
        all_bytes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(format)
        finite = all_bytes.float().isfinite()
        check(same(values_of(all_bytes, torch.float32)[finite], all_bytes.float()[finite]),
              f"{name}: the values of all {int(finite.sum())} finite bytes are PyTorch's")
        want = plain_fp8(x.double().numpy(), mantissa, least, MAX[format])
        got = values_of(x.clamp(-MAX[format], MAX[format]).to(format), torch.float64).numpy()
        check(np.array_equal(got, want) and np.array_equal(np.signbit(got), np.signbit(want)),
              f"{name}: {x.numel()} numbers rounded to nearest even, saturating, with their signs")
        cast = x[(x.abs() > MAX[format] * 1.2) & x.isfinite()].to(format).float()
        kind = "infinity" if cast.isinf().any() else "NaN" if cast.isnan().any() else f"{MAX[format]:.0f}"
        print(f"     what PyTorch {torch.__version__} casts to {name} without a clamp, when it is too large: {kind}")


def test_scales() -> None:
    amaxes = every_bf16().flatten().float()
    amaxes = amaxes[amaxes >= 0]
    for name, format in FORMATS.items():
        plain = (np.float64(MAX[format]) / np.maximum(amaxes.double().numpy(), 1e-12)).astype(np.float32)
        check(np.array_equal(scale_of(amaxes, format, False).numpy(), plain), f"{name}: scales of {len(plain)} amaxes")
        floor = 2.0 ** np.floor(np.log2(plain.astype(np.float64)))
        check(np.array_equal(scale_of(amaxes, format, True).numpy(), floor.astype(np.float32)),
              f"{name}: and their powers of two")
        check(np.array_equal((1 / scale_of(amaxes, format, False)).numpy(), np.float32(1) / plain),
              f"{name}: and their inverses, divided in fp32")
        theirs = (float8_utils.amax_to_scale(amaxes, format, pow2) for pow2 in (False, True))
        check(all(same(scale_of(amaxes, format, pow2), scale) for pow2, scale in zip((False, True), theirs)),
              f"{name}: torchao's amax_to_scale gives the same for every amax that bf16 has")
    # torchao takes exp2(floor(log2(scale))) in fp32: just below a power of two, log2 rounds up to it.
    near = torch.tensor([2.0**e * (1 - 2.0**-24) for e in range(-100, 101)])
    theirs = float8_utils._round_scale_down_to_power_of_2(near)
    other = int((power_of_two(near) != theirs).sum())
    check(other > 100 and bool((theirs[power_of_two(near) != theirs] > near[power_of_two(near) != theirs]).all()),
          f"torchao's power of two is above {other} of {len(near)} scales just below one; no bf16 amax has such")


def test_groups() -> None:
    """Against loops over the groups."""
    for name, x in hostile_tensors().items():
        if name == "every bf16":
            continue
        R, K = x.shape
        high, wide = math.ceil(R / 128), math.ceil(K / 128)
        magnitude = x.float().abs().numpy()
        plain = {"tensor": magnitude.max(), "row": [row.max() for row in magnitude],
                 "1x128": [[row[128 * j : 128 * j + 128].max() for j in range(wide)] for row in magnitude],
                 "128x128": [[magnitude[128 * i : 128 * i + 128, 128 * j : 128 * j + 128].max() for j in range(wide)]
                             for i in range(high)]}
        right = all(np.array_equal(amax_of(x, groups).numpy(), np.float32(plain[groups])) for groups in plain)
        larger = torch.zeros(R + 19, K + 150, dtype=BF16)
        larger[:R, :K] = x
        for groups in plain:
            alone, inside = (quantize(t, E4M3, groups, False) for t in (x, larger))
            right &= same(alone.data, inside.data[:R, :K]) and not inside.data.view(torch.uint8)[R:].any()
            part = tuple(slice(size) for size in alone.inverse.shape)
            right &= same(alone.inverse, inside.inverse[part])
        check(right, f"amaxes of all groups, and the same bytes in a padded matrix: {name} {R} x {K}")
    for bad in (math.inf, -math.inf, math.nan):
        x = random(9, 140)
        x[4, 135] = bad
        for groups in ("tensor", "row", "1x128", "128x128"):
            try:
                quantize(x, E5M2, groups, False, name="layers.3.o.dy")
                words = "accepted"
            except ValueError as error:
                words = str(error)
            check(words.startswith("layers.3.o.dy holds"), f"{groups:8}: {words}")


def test_delayed() -> None:
    """Worked by hand."""

    def scales(amaxes: list[float], format: torch.dtype = E4M3, **options: object) -> list[float | None]:
        delayed = DelayedScale(format, Quantization.of({"recipe": "delayed"} | options))
        result: list[float | None] = []
        for amax in (*amaxes, 0.0):
            scale = delayed.scale()
            result.append(None if scale is None else scale.item())
            delayed.end_step(amax)
        return result

    most = torch.finfo(torch.float32).max
    cases: list[tuple[str, list[float | None], list[float | None]]] = [
        ("the largest so far", scales([2, 4, 1]), [None, 224, 112, 112]),
        ("of the window only", scales([4, 1, 2, 0.5], history=2), [None, 112, 112, 224, 224]),
        ("the latest", scales([2, 4, 1], algorithm="latest"), [None, 224, 112, 448]),
        ("with a margin", scales([2, 4], margin=3), [None, 28, 14]),
        ("e5m2", scales([2, 7], E5M2), [None, 28672, 8192]),
        ("rounded to fp32", scales([3]), [None, float(np.float32(448 / 3))]),
        ("rounded down to a power of two", scales([2, 4, 3.5], pow2=True, algorithm="latest"), [None, 128, 64, 128]),
        ("zeros: the first scale is 1", scales([0, 0, 4]), [None, 1, 1, 112]),
        ("zeros keep the last", scales([4, 0, 2], algorithm="latest"), [None, 112, 112, 224]),
        ("too large for fp32", scales([2.0**-133]), [None, most]),
        ("and then a power of two", scales([2.0**-133], pow2=True), [None, 2.0**127]),
        ("no 1e-12", scales([2.0**-60]), [None, 448 * 2.0**60])]
    for words, got, want in cases:
        check(got == want, f"delayed scales, {words}: {got}")
    for name, format in FORMATS.items():
        large = quantize(random(3, 40) * 1e9, format, "tensor", False, torch.tensor(7.0))
        check(bool((values_of(large.data, torch.float32).abs() == MAX[format]).all()),
              f"{name}: what outgrows a delayed scale saturates")


# ---------------------------------------------------------------------------------------------- against torchao


def torchao_blockwise(x: Tensor, groups: str) -> tuple[Tensor, Tensor]:
    """By torchao's CPU references; they take whole blocks, so x is padded and the result cut."""
    R, K = x.shape
    whole = nn.functional.pad(x, (0, -K % 128, 0, -R % 128)).contiguous()
    quantize_blocks = {"1x128": torchao_blocks.torch_blockwise_scale_act_quant_lhs,
                       "128x128": torchao_blocks.torch_blockwise_scale_weight_quant}[groups]
    data, inverse = quantize_blocks(whole)
    return data[:R, :K], inverse[:R]


def test_torchao_transpose() -> None:
    """torchao's quantization of 128 x 1 blocks is that of 1 x 128 blocks of the transpose, with one difference: of bf16
    it takes max(amax, 1e-12) in bf16, in which 1e-12 is 1.0018e-12."""
    for name, x in hostile_tensors().items():
        x = nn.functional.pad(x, (0, -x.shape[1] % 128, 0, -x.shape[0] % 128))
        ours = quantize(x, E4M3, "1x128", False)
        data, inverse = torchao_blocks.torch_blockwise_scale_act_quant_rhs(x.t().float().contiguous())
        _, rounded = torchao_blocks.torch_blockwise_scale_act_quant_rhs(x.t().contiguous())
        other = rounded.t() != ours.inverse
        check(same(data.t(), ours.data) and same(inverse.t(), ours.inverse) and
              torch.equal(other, amax_of(x, "1x128") < SMALLEST_AMAX),
              f"torchao's 128 x 1 blocks of the transpose, {name}; from bf16 {int(other.sum())} of {other.numel()} "
              "scales are others, just those of amaxes below 1e-12")


def test_torchao_functions() -> None:
    axes = {"tensor": (ScalingGranularity.TENSORWISE, None), "row": (ScalingGranularity.AXISWISE, -1)}
    compared = 0
    for name, x in hostile_tensors().items():
        right = True
        for groups, (granularity, axis) in axes.items():
            for format in FORMATS.values():
                for pow2 in (False, True):
                    ours = quantize(x, format, groups, pow2)
                    theirs = hp_tensor_to_float8_dynamic(x, format, None, scaling_granularity=granularity,
                                                         axiswise_dim=axis, round_scales_to_power_of_2=pow2)
                    right &= same(ours.data, theirs._data)
                    right &= same(ours.inverse, 1 / theirs._scale.view(ours.inverse.shape))
                    compared += x.numel()
        for groups in ("1x128", "128x128"):  # theirs have no powers of two
            ours = quantize(x, E4M3, groups, False)
            data, inverse = torchao_blockwise(x, groups)
            right &= same(ours.data, data) and same(ours.inverse, inverse)
            compared += x.numel()
        check(right, f"torchao's bytes and scales, per tensor, row, 1 x 128 and 128 x 128: {name} {tuple(x.shape)}")
    print(f"     {compared} entries compared with torchao, none differs")


def test_torchao_layer() -> None:
    """All operands of torchao's own linear layer, caught where it casts."""
    N, IC, OC = 48, 80, 112
    names = {"tensorwise": "tensorwise", "rowwise": "rowwise", "rowwise-hp-wgrad": "rowwise_with_gw_hp"}
    for recipe, theirs in names.items():
        config = replace(Float8LinearConfig.from_recipe_name(theirs), emulate=True)
        sources = {"x": random(N, IC), "w": random(OC, IC), "dy": random(N, OC)}
        layer = nn.Linear(IC, OC, bias=False, dtype=BF16)
        layer.weight.data.copy_(sources["w"])
        layer = float8_linear.Float8Linear.from_float(layer, config)
        caught: list[tuple[Tensor, Tensor]] = []

        def catch(x: Tensor, *arguments: object, **options: object) -> Tensor:
            result = hp_tensor_to_float8_dynamic(x, *arguments, **options)
            caught.append((result._data, 1 / result._scale))
            return result

        x = sources["x"].clone().requires_grad_()
        with mock.patch.object(float8_linear, "hp_tensor_to_float8_dynamic", catch):
            y = layer(x)
            y.backward(sources["dy"])
        operands = Operands("layers.0.o", Quantization.of({"recipe": recipe}), sources)
        used = [pair for direction in DIRECTIONS if operands.settings.groups("layers.0.o", direction)
                for pair in operands.pair(direction)]

        def matches(ours: Operand, data: Tensor, inverse: Tensor) -> bool:  # of which torchao may hold the transpose
            data = data if data.shape == ours.data.shape else data.t()
            return same(ours.data, data) and same(ours.inverse, inverse.reshape(ours.inverse.shape))

        check(len(caught) == len(used) and all(matches(ours, *pair) for ours, pair in zip(used, caught)),
              f"torchao's Float8Linear, {theirs}: its {len(caught)} operands to the bit")
        # Its emulated products are of operands decoded to bf16: each errs by 2^-9 unless scales are powers of two.
        for words, direction, got in (("y", "forward", y), ("dx", "dgrad", x.grad), ("dw", "wgrad", layer.weight.grad)):
            want = product(*operands.pair(direction), torch.float64)
            error = ((got.double() - want).norm() / want.norm()).item()
            check(error < 4e-3, f"     {words}: {error:.1e}")


def test_scaled_product() -> None:
    """torch._scaled_mm, of the same operands: how the inverse scales multiply."""
    for recipe in ("tensorwise", "rowwise", "rowwise-hp-wgrad"):
        settings = Quantization.of({"recipe": recipe, "pow2": False})
        operands = Operands("layers.0.o", settings, {"x": random(48, 80), "w": random(112, 80), "dy": random(48, 112)})
        for direction in DIRECTIONS if recipe != "rowwise-hp-wgrad" else ["forward"]:
            a, b = operands.pair(direction)
            scales = [a.inverse, b.inverse] if recipe == "tensorwise" else [a.inverse[:, None], b.inverse[None]]
            theirs = torch._scaled_mm(a.data.contiguous(), b.data.contiguous().t(), *scales, out_dtype=torch.float32)
            ours = product(a, b, torch.float32)
            error = ((ours - theirs).norm() / theirs.norm()).item()
            check(error < 3e-7, f"torch._scaled_mm, {recipe}, {direction}: {error:.1e}")


# ---------------------------------------------------------------------------------------------- the model and the dumps


def test_model() -> None:
    recipe = make_dump.RECIPE | {"grad_clip": 1.0, "steps": 3}
    for name, shape in make_dump.SHAPES.items():
        if shape.documents or shape.older_config:
            continue
        config, weights, batch = setting(name)
        truth = make_dump.expected_run(config, weights, batch, recipe)
        model = make_dump.emulation(config, shape.T, None, torch.float64)
        run = make_dump.run_recipe(lambda w, s: model.gradients(w, batch["input_ids"][s], batch["labels"][s]), weights,
                                   recipe, torch.float64)
        error = max(((run[key] - truth[key]).norm() / truth[key].norm()).item() for key in truth)
        expected = {key: t.float() for key, t in truth.items()}
        bf16, _ = make_dump.train_emulated(config, weights, batch, recipe, None)
        _, errors, _ = make_dump.measure(config, weights, batch, recipe)
        ratios = [make_dump.relative_error(key, bf16[key], expected, recipe) / errors["bf16"][key]
                  for key in expected if "grad." in key]
        # Fewer roundings than Hugging Face's: a little below 1.
        check(error < 1e-12 and 0.5 < np.median(ratios) < 1.05,
              f"the emulation of {name:20} in float64 against Hugging Face's: {error:.1e}; in bf16 its gradients have "
              f"{np.median(ratios):.2f} of PyTorch's error")


def test_head() -> None:
    """Against plain arithmetic: logits, and both gradients, of 3 labels."""
    rng, labels = np.random.default_rng(3), 3
    x, w, dy = (torch.from_numpy(rng.standard_normal(shape) * size).to(BF16)
                for shape, size in (((19, 24), 2.0), ((37, 24), 0.05), ((19, 37), 0.2 / labels)))
    dy[0, 0] = -1.02 / labels
    plain = {}
    for name, matrix, mantissa, least, largest in (("x", x, 3, -6, 448.0), ("w", w, 3, -6, 448.0), ("dy", dy, 2, -14, 57344.0)):
        values = matrix.double().numpy()
        scale = np.float64(np.float32(largest / 2 * labels if name == "dy" else largest / np.abs(values).max()))
        plain[name] = plain_fp8(np.float64(np.float32(values * scale)), mantissa, least, largest) / scale
    truth = {"forward": plain["x"] @ plain["w"].T, "dgrad": plain["dy"] @ plain["w"], "wgrad": plain["dy"].T @ plain["x"]}
    for recipe in GROUPS:
        settings = Quantization.of({"recipe": recipe, "head": "on", "pow2": False})
        operands = Operands("head", settings.of_head(), {"x": x, "w": w, "dy": dy}, {"dy": head_gradient_scale(labels)})
        error = max(np.abs(product(*operands.pair(direction), torch.float64).numpy() / truth[direction] - 1).max()
                    for direction in DIRECTIONS)
        check(error < 1e-5, f"{recipe}: the head's products against plain arithmetic: {error:.1e}")


def test_micro_batches() -> None:
    """A row each: in float64 they are one batch; a delayed scale follows the largest number of all of them."""
    config, weights, batch = setting("gqa4")
    inputs, labels = batch["input_ids"][0], batch["labels"][0].clone()
    labels[0, : labels.shape[1] // 2] = -100  # so that the rows count differently
    T = labels.shape[1]
    whole, parts = (make_dump.emulation(config, T, None, torch.float64).gradients(weights, *tokens) for tokens in
                    ((inputs, labels), (inputs[:, None], labels[:, None])))
    pairs = [(whole[0], parts[0][:, 0]), (whole[1], parts[1]), *((whole[2][name], parts[2][name]) for name in weights)]
    error = max(((a - b).norm() / a.norm()).item() for a, b in pairs)
    delayed = make_dump.emulation(config, T, Quantization.parse("delayed"))
    delayed.gradients(weights, inputs[:, None], labels[:, None])
    single = [make_dump.emulation(config, T, Quantization.parse("delayed")) for _ in inputs]
    for model, row in zip(single, inputs):
        model.gradients(weights, row[None], labels[:1])
    names = [name for name in delayed.delayed if name.endswith("0.qkv.x")]
    largest = all(delayed.delayed[name].history == [max(m.delayed[name].history[0] for m in single)] for name in names)
    check(len(inputs) > 1 and error < 1e-12 and names and largest,
          f"{len(inputs)} micro-batches in float64 against one batch: {error:.1e}; their amax is the step's")


def test_dumps() -> None:
    for folder in sorted(DUMPS.glob("fp8_*")):
        settings = Quantization.of(json.loads((folder / "recipe.json").read_text())["quantization"])
        stored = load_file(folder / "operands.safetensors")
        config, weights, batch = setting(folder.name)
        wrong, products = [], 0
        for layer in [f"layers.{l}.{p}" for l in range(config.num_hidden_layers) for p in PRODUCTS]:
            operands = Operands(layer, settings, {source: stored[f"{layer}.{source}"] for source in ("x", "w", "dy")})
            for direction in DIRECTIONS:
                out = product(*operands.pair(direction), torch.float32)
                for name, tensor in recorded(operands, direction, out).items():
                    if name.endswith(".out"):
                        wrong += [name] if (tensor - stored[name]).norm() > 1e-6 * tensor.norm() else []
                    else:
                        wrong += [name] if difference(stored[name], tensor) else []
                products += 1
        qkv = torch.cat([weights[f"model.layers.0.self_attn.{letter}_proj.weight"] for letter in "qkv"]).to(BF16)
        gate_up = torch.cat([weights[f"model.layers.0.mlp.{noun}_proj.weight"] for noun in ("gate", "up")]).to(BF16)
        fused = torch.equal(stored["layers.0.qkv.w"], qkv) and torch.equal(stored["layers.0.gate_up.w"], gate_up)
        errors = json.loads((folder / "pytorch_error.json").read_text())
        grads = [name for name in errors["bf16"] if name.startswith("grad.")]
        ratio = np.median([errors[settings.recipe][name] / errors["bf16"][name] for name in grads])
        check(not wrong and fused and 3 < ratio < 20, f"{folder.name}: the operands of {products} products; gradients "
              f"err {ratio:.1f} times as much as in bf16")


# ---------------------------------------------------------------------------------------------- check_operands.py


def write_run(folder: Path, settings: Quantization, mistake: str = "", every_step: bool = False) -> None:
    """As a program with two ranks of two micro-batches would write it, with one mistake; operands of the last step."""
    N, C, QKV, FF, steps, micros, ranks = 45, 136, 72, 40, 3, 2, 2
    sizes = {"qkv": (C, QKV), "o": (24, C), "gate_up": (C, 2 * FF), "down": (FF, C)}
    rng = torch.Generator().manual_seed(1)
    weights = {p: [torch.randn(OC, IC, generator=rng).mul(1 + s % 2).to(BF16) for s in range(steps)]
               for p, (IC, OC) in sizes.items()}
    runs: dict[tuple[int, int, int], dict[str, Tensors]] = {}
    for s in range(steps):
        for k in range(micros):
            for r in range(ranks):  # the largest dY is in step 0, micro-batch 1, rank 0
                size = (3 - s) * (1 + k) * (2 - r) * 0.01
                runs[s, k, r] = {p: {"x": torch.randn(N, IC, generator=rng).to(BF16), "w": weights[p][s],
                                     "dy": (torch.randn(N, OC, generator=rng) * size).to(BF16)}
                                 for p, (IC, OC) in sizes.items()}

    def largest(p: str, source: str, upto: int, rank: int | None) -> float:
        chosen = {key: run[p][source].float().abs().max().item() for key, run in runs.items()
                  if key[0] < upto and rank in (None, key[2]) and not (mistake == "micro-batch 0 only" and key[1])}
        newest = max(s for s, _, _ in chosen)
        return max(a for (s, _, _), a in chosen.items() if settings.algorithm == "max" or s == newest)

    folder.mkdir()
    (folder / "settings.json").write_text(json.dumps({"quantization": settings.json()}))
    for r in range(ranks):
        for s in range(steps):
            sums: Tensors = {}
            for k in range(micros):
                tensors: Tensors = {}
                for p in sizes:
                    name = f"layers.0.{p}"
                    sources = dict(runs[s, k, r][p])
                    tensors |= {f"{name}.{source}": x.clone() for source, x in sources.items()}
                    if (s < steps - 1 and not every_step) or (p in settings.skip and r):
                        continue
                    scales: dict[str, Tensor | None] = {}
                    if settings.recipe == "delayed" and s == 0:
                        for source in sources:
                            of_ranks = [runs[0, k, rank][p][source].float().abs().max()
                                        for rank in ([r] if mistake == "own rank only" else range(ranks))]
                            scales[source] = scale_of(torch.stack(of_ranks).max(), settings.format_of(source),
                                                      settings.pow2)
                    elif settings.recipe == "delayed":
                        for source in sources:
                            upto = s - 1 if mistake == "a step late" else s + 1 if mistake == "a step early" else s
                            wide = MAX[settings.format_of(source)] * 2.0**-settings.margin / largest(
                                p, source, upto, r if mistake == "own rank only" else None)
                            scales[source] = torch.tensor(wide, dtype=torch.float64).float()
                    if mistake == "stale weight":
                        sources["w"] = weights[p][s - 1]
                    operands = Operands(name, settings, sources, scales)
                    for direction in DIRECTIONS:
                        out = product(*operands.pair(direction), torch.float32)
                        if direction == "wgrad":
                            out = sums[name] = sums.get(name, 0) + out
                        tensors |= recorded(operands, direction, out if direction == "wgrad" else out.to(BF16))
                save_file(tensors, folder / f"step{s}.micro{k}.rank{r}.safetensors")


def test_check_operands(scratch: Path) -> None:
    variants = [{"recipe": recipe} for recipe in GROUPS] + [
        {"recipe": "tensorwise", "gradient": "e4m3", "pow2": True, "skip": ["down"]},
        {"recipe": "rowwise", "pow2": False}, {"recipe": "blockwise", "pow2": False},
        {"recipe": "delayed", "algorithm": "latest", "margin": 1}]
    for i, options in enumerate(variants):
        write_run(scratch / f"right{i}", Quantization.of(options), every_step=i == 1)
        checker = check_folder(scratch / f"right{i}")
        worst = max(row.out for row in checker.rows.values())
        check(not checker.differences, f"check_operands: a right run passes, out within {worst:.1e}: {options}"
              + "".join(f"\n  {line}" for line in checker.differences[:3]))

    last, stem = "step2.micro1.rank1.safetensors", "layers.0.gate_up"

    def edit(change: Callable[[Tensors], object]) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            tensors = load_file(folder / last)
            change(tensors)
            save_file({name: t.clone(memory_format=torch.contiguous_format) for name, t in tensors.items()},
                      folder / last)
        return apply

    def options(**changes: object) -> Callable[[Path], None]:
        def apply(folder: Path) -> None:
            entry = json.loads((folder / "settings.json").read_text())["quantization"]
            (folder / "settings.json").write_text(json.dumps({"quantization": entry | changes}))
        return apply

    def bit(tensors: Tensors, name: str, bits: torch.dtype) -> None:
        tensors[name].view(-1)[-1:].view(bits).bitwise_xor_(1)

    def swapped(tensors: Tensors) -> None:
        """The halves of gate and up."""
        w = tensors[f"{stem}.w"]
        tensors[f"{stem}.w"] = torch.cat(w.chunk(2)[::-1])

    faults: list[tuple[str, str, str, Callable[[Path], None]]] = [
        ("tensorwise", "a byte", f"{stem}.dgrad.b 1 of", edit(lambda t: bit(t, f"{stem}.dgrad.b", torch.uint8))),
        ("tensorwise", "the last bit of a scale", f"{stem}.dgrad.scale_a 1 of",
         edit(lambda t: bit(t, f"{stem}.dgrad.scale_a", torch.int32))),
        ("tensorwise", "scales instead of inverses", f"{stem}.forward.scale_b",
         edit(lambda t: t[f"{stem}.forward.scale_b"].reciprocal_())),
        ("tensorwise", "the other format", "is e5m2, expected e4m3", options(gradient="e4m3")),
        ("tensorwise", "scales that are no powers of two", "scale_a 1 of 1 differ", options(pow2=True)),
        ("tensorwise", "W instead of its transpose", f"{stem}.dgrad.b has shape (80, 136)",
         edit(lambda t: t.update({f"{stem}.dgrad.b": t[f"{stem}.dgrad.b"].t()}))),
        ("tensorwise", "up before gate", f"{stem}.forward.b", edit(swapped)),
        ("tensorwise", "a product too large by 1%", f"{stem}.forward.out errs by 1.0",
         edit(lambda t: t[f"{stem}.forward.out"].mul_(1.01))),
        ("tensorwise", "wgrad rounded to bf16", f"{stem}.wgrad.out errs",
         edit(lambda t: t.update({f"{stem}.wgrad.out": t[f"{stem}.wgrad.out"].to(BF16).float()}))),
        ("tensorwise", "wgrad in bf16", f"{stem}.wgrad.out is torch.bfloat16",
         edit(lambda t: t.update({f"{stem}.wgrad.out": t[f"{stem}.wgrad.out"].to(BF16)}))),
        ("tensorwise", "a missing operand", f"{stem}.wgrad.a is missing", edit(lambda t: t.pop(f"{stem}.wgrad.a"))),
        ("tensorwise", "a missing source", f"{stem}: dy missing", edit(lambda t: t.pop(f"{stem}.dy"))),
        ("tensorwise", "a missing product", "layers.0.o: dy, w, x missing",
         edit(lambda t: [t.pop(name) for name in list(t) if ".o." in name])),
        ("tensorwise", "an infinity", f"{last}: {stem}.x holds inf",
         edit(lambda t: t[f"{stem}.x"][0, 0].fill_(math.inf))),
        ("tensorwise", "a missing file", "missing: step1.micro1.rank0",
         lambda d: (d / "step1.micro1.rank0.safetensors").unlink()),
        ("tensorwise", "an unknown setting", "settings.json: quantization: scaling", options(scaling="dynamic")),
        ("rowwise", "scales per column", f"{stem}.wgrad.scale_b has shape (137,)",
         edit(lambda t: t.update({f"{stem}.wgrad.scale_b": torch.ones(137)}))),
        ("rowwise", "a transpose of the rows' bytes", f"{stem}.wgrad.b",
         edit(lambda t: t.update({f"{stem}.wgrad.b": t[f"{stem}.forward.a"].t()}))),
        ("rowwise-hp-wgrad", "a quantized wgrad", f"{stem}.wgrad.a is e4m3, expected bf16",
         edit(lambda t: t.update({f"{stem}.wgrad.a": t[f"{stem}.wgrad.a"].to(E4M3)}))),
        ("blockwise", "W's scales not transposed", f"{stem}.dgrad.scale_b has shape (1, 2)",
         edit(lambda t: t.update({f"{stem}.dgrad.scale_b": t[f"{stem}.forward.scale_b"]}))),
        ("delayed", "latest for max", ".scale_a 1 of 1 differ", options(algorithm="latest")),
        ("delayed", "a margin", ".scale_a 1 of 1 differ", options(margin=1))]
    faults += [("delayed", mistake, "dgrad.scale_a 1 of 1 differ", lambda folder: None)
               for mistake in ("own rank only", "micro-batch 0 only")]
    faults += [("delayed", "a step late", "forward.scale_b 1 of 1 differ", lambda folder: None)]
    faults += [(recipe, "stale weight", f"{stem}.dgrad.b", lambda folder: None) for recipe in GROUPS]
    faults += [("delayed-latest", "a step early", "dgrad.scale_a 1 of 1 differ", lambda folder: None)]
    folder = scratch / "wrong"
    write_run(folder, Quantization.of({"recipe": "delayed"}), "own rank only", every_step=True)
    seen = [line for line in check_folder(folder).differences if "step0" in line and "scale" in line]
    check(bool(seen), f"seen, delayed: own rank only, in step 0: {seen[0]}")
    shutil.rmtree(folder)
    for recipe, mistake, words, apply in faults:
        latest = {"recipe": "delayed", "algorithm": "latest"}
        settings = Quantization.of({"recipe": recipe} if recipe in GROUPS else latest)
        write_run(folder, settings, mistake)
        apply(folder)
        try:
            seen = check_folder(folder).differences
        except Invalid as error:
            seen = [str(error)]
        told = next((line for line in seen if words in line), "")
        check(bool(told), f"seen, {recipe}: {mistake}: {told or seen[:2]}")
        shutil.rmtree(folder)


def main() -> None:
    torch.set_num_threads(1)
    test_numbers()
    test_scales()
    test_groups()
    test_delayed()
    test_torchao_functions()
    test_torchao_transpose()
    test_torchao_layer()
    test_scaled_product()
    test_model()
    test_head()
    test_micro_batches()
    test_dumps()
    with tempfile.TemporaryDirectory() as scratch:
        test_check_operands(Path(scratch))


if __name__ == "__main__":
    main()
