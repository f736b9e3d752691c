"""Checks that a directory is a parity dump (README.md has the format).  Needs numpy and safetensors only.

    python dev/reference/check_dump.py DIR...

Prints what is wrong, a line each; exit code 1 if anything is.
"""

import json
import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open

RECIPE_KEYS = {"learning_rate", "beta1", "beta2", "eps", "weight_decay", "grad_clip", "steps"}
MUON_KEYS = {"learning_rate", "momentum", "weight_decay"}
FILES = ("config.json", "model.safetensors", "batch.safetensors", "recipe.json", "expected.safetensors",
         "pytorch_error.json")
FAMILIES = ("llama", "mistral", "ministral", "qwen2", "qwen3", "olmo2")
IGNORED = -100

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]


class Invalid(Exception):
    """What makes it pointless to look further."""


def read_json(path: Path) -> dict:
    try:
        value = json.loads(path.read_text())
    except ValueError as error:
        raise Invalid(f"{path.name}: not JSON: {error}") from None
    if not isinstance(value, dict):
        raise Invalid(f"{path.name}: expected an object {{...}}")
    return value


def open_tensors(path: Path) -> safe_open:
    try:
        return safe_open(path, framework="numpy")
    except SafetensorError as error:
        raise Invalid(f"{path.name}: not a safetensors file, or cut short: {error}") from None


def read_tensors(path: Path, dtype: str, shapes: Shapes, optional: Shapes | None = None) -> Arrays:
    """The tensors of a file that must hold just these, of this type and these shapes."""
    arrays: Arrays = {}
    with open_tensors(path) as file:
        names = set(file.keys())
        known = shapes | (optional or {})
        problems = [f"{path.name}: {name} is missing" for name in sorted(shapes.keys() - names)]
        problems += [f"{path.name}: {name} does not belong here" for name in sorted(names - known.keys())]
        for name in sorted(names & known.keys()):
            view = file.get_slice(name)
            if view.get_dtype() != dtype:
                problems.append(f"{path.name}: {name} is {view.get_dtype()}, expected {dtype}")
            elif tuple(view.get_shape()) != known[name]:
                problems.append(f"{path.name}: {name} has shape {tuple(view.get_shape())}, expected {known[name]}")
            else:
                arrays[name] = file.get_tensor(name)
    problems += [f"{path.name}: {name} holds {array[~np.isfinite(array)][0]}" for name, array in arrays.items()
                 if not np.isfinite(array).all()]
    if problems:
        raise Invalid("\n".join(problems))
    return arrays


def weight_shapes(config: dict) -> Shapes:
    """Shapes of a model's weights, by Hugging Face name."""
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    missing = [key for key in keys if not isinstance(config.get(key), int)]
    if missing:
        raise Invalid(f"config.json: {', '.join(missing)}: missing or not an integer")
    C, FF, L, NH, V = (config[key] for key in keys)
    family = config.get("model_type")
    if family not in FAMILIES:
        raise Invalid(f"config.json: model_type is {family!r}, expected {', '.join(FAMILIES)}")
    own = {"qwen2": ["num_key_value_heads"], "mistral": ["num_key_value_heads"], "ministral": ["num_key_value_heads"], "qwen3": ["num_key_value_heads", "head_dim"]}
    missing = [key for key in own.get(family, ()) if config.get(key) is None]
    if missing:  # those classes take other numbers than the two below
        raise Invalid(f"config.json: {', '.join(missing)}: missing")
    NKV = config.get("num_key_value_heads") or NH
    HD = config.get("head_dim") or C // NH
    if NH % NKV:
        raise Invalid(f"config.json: {NH} query heads are not a multiple of {NKV} key/value heads")
    if "rope_parameters" not in config and "rope_theta" not in config:
        raise Invalid("config.json: neither rope_parameters nor rope_theta says how positions rotate")
    shapes = {"model.embed_tokens.weight": (V, C), "model.norm.weight": (C,)}
    if not config.get("tie_word_embeddings", False):
        shapes["lm_head.weight"] = (V, C)
    block = {"self_attn.q_proj": (NH * HD, C), "self_attn.k_proj": (NKV * HD, C),
             "self_attn.v_proj": (NKV * HD, C), "self_attn.o_proj": (C, NH * HD), "post_attention_layernorm": (C,),
             "mlp.gate_proj": (FF, C), "mlp.up_proj": (FF, C), "mlp.down_proj": (C, FF),
             "post_feedforward_layernorm" if family == "olmo2" else "input_layernorm": (C,)}
    if family in ("qwen3", "olmo2"):  # a norm of each head, or of all
        heads = {"q": NH, "k": NKV} if family == "olmo2" else {"q": 1, "k": 1}
        block |= {f"self_attn.{x}_norm": (heads[x] * HD,) for x in "qk"}
    block = {f"{noun}.weight": shape for noun, shape in block.items()}
    if family == "qwen2":
        block |= {f"self_attn.{x}_proj.bias": block[f"self_attn.{x}_proj.weight"][:1] for x in "qkv"}
    for layer in range(L):
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    return shapes


def check_recipe(recipe: dict) -> Iterator[str]:
    for key in sorted(RECIPE_KEYS - recipe.keys()):
        yield f"recipe.json: {key} is missing"
    for key in sorted(recipe.keys() - RECIPE_KEYS - {"quantization", "muon"}):
        yield f"recipe.json: {key} does not belong here"
    for key in sorted(RECIPE_KEYS & recipe.keys()):
        if not isinstance(recipe[key], (int, float)) or not math.isfinite(recipe[key]) or recipe[key] < 0:
            yield f"recipe.json: {key} is {recipe[key]!r}, expected a number, not negative"
    if not isinstance(recipe.get("steps", 1), int) or recipe.get("steps", 1) < 1:
        yield f"recipe.json: steps is {recipe['steps']!r}, expected an integer of 1 or more"
    elif isinstance(recipe.get("eps"), float) and recipe["eps"] < 1e-5:
        yield f"recipe.json: eps is {recipe['eps']}; below 1e-5 AdamW turns rounding errors into full steps"
    muon = recipe.get("muon", {"scale": "original"} | dict.fromkeys(MUON_KEYS, 0.0))
    if not isinstance(muon, dict) or muon.get("scale") not in ("original", "match-rms") or not all(
            isinstance(muon.get(key), (int, float)) and muon[key] >= 0 for key in MUON_KEYS):
        yield (f"recipe.json: muon is {muon!r}, expected a scale, original or match-rms, and numbers, not negative: "
               f"{', '.join(sorted(MUON_KEYS))}")
    quantization = recipe.get("quantization", {"recipe": ""})
    if not isinstance(quantization, dict) or not isinstance(quantization.get("recipe"), str):
        yield f"recipe.json: quantization is {quantization!r}, expected an object with a recipe's name"


def batch_shape(path: Path, steps: int) -> tuple[int, int, int]:
    with open_tensors(path) as file:
        shape = tuple(file.get_slice("input_ids").get_shape()) if "input_ids" in file.keys() else ()
    if len(shape) != 3 or shape[0] != steps:
        raise Invalid(f"{path.name}: input_ids has shape {shape}, expected (steps, B, T) with {steps} steps")
    return shape


def check_batch(batch: Arrays, V: int) -> Iterator[str]:
    ids, labels = batch["input_ids"], batch["labels"]
    counted = labels != IGNORED
    if ids.min() < 0 or ids.max() >= V:
        yield f"batch.safetensors: input_ids run from {ids.min()} to {ids.max()}; the vocabulary has {V}"
    if (counted & ((labels < 0) | (labels >= V))).any():
        yield (f"batch.safetensors: labels run from {labels.min()} to {labels.max()}; expected 0 to {V - 1}, or "
               f"{IGNORED}")
    for step in np.flatnonzero(~counted.any(axis=(1, 2))):
        yield f"batch.safetensors: every label of step {step} is ignored; its loss is 0/0"
    if counted.any() and (labels == ids)[counted].all():
        yield "batch.safetensors: labels equal input_ids: they must already be shifted (the token to predict at t)"
    if "position_ids" in batch:
        positions = batch["position_ids"]
        follows = (positions[..., 1:] == positions[..., :-1] + 1) | (positions[..., 1:] == 0)
        if (positions[..., 0] != 0).any() or not follows.all():
            yield "batch.safetensors: position_ids must start at 0 and count up, or start again at 0 with a document"


def check_expected(expected: Arrays, weights: Arrays, batch: Arrays, recipe: dict) -> Iterator[str]:
    """What can be known without running the model."""
    labels = batch["labels"][0]
    counted = labels != IGNORED
    logits = expected["logits"].astype(np.float64)[counted]
    top = logits.max(-1)
    log_sum = top + np.log(np.exp(logits - top[:, None]).sum(-1))
    loss = (log_sum - logits[np.arange(len(logits)), labels[counted]]).mean()
    if abs(loss - expected["loss"][0]) > 1e-5 * loss:
        yield (f"expected.safetensors: loss of step 0 is {expected['loss'][0]:.6f}, but its logits and labels give "
               f"{loss:.6f} (mean over labels that are not ignored)")
    norm = math.sqrt(sum(float((expected[f"grad.{name}"].astype(np.float64) ** 2).sum()) for name in weights))
    if abs(norm - expected["grad_norm"][0]) > 1e-5 * norm:
        yield (f"expected.safetensors: grad_norm of step 0 is {expected['grad_norm'][0]:.6f}, but the gradients' norm "
               f"is {norm:.6f} (before clipping, a tied weight counted once)")
    # Adam moves a weight by at most a few learning rates a step; 10 leaves room for any betas in use.
    for name, w in weights.items():
        reach = recipe["learning_rate"] * recipe["steps"] * (10 + recipe["weight_decay"] * float(np.abs(w).max()))
        largest = float(np.abs(expected[f"update.{name}"]).max())
        if largest > reach:
            yield (f"expected.safetensors: update.{name} reaches {largest:.3g}, AdamW cannot move it by more than "
                   f"{reach:.3g}: an update is the last weights minus the initial ones")


def check_errors(errors: dict, names: set[str], recipe: dict) -> Iterator[str]:
    keys = {"fp32", "bf16"} | ({recipe["quantization"]["recipe"]} if "quantization" in recipe else set())
    seeds = {f"{key}_seeds" for key in keys - {"fp32"}}
    for key in sorted(keys - errors.keys()):
        yield f"pytorch_error.json: {key} is missing"
    for key in sorted(errors.keys() - keys - seeds):
        yield f"pytorch_error.json: {key} does not belong here"
    for key in sorted((keys | seeds) & errors.keys()):
        for name in sorted(names - errors[key].keys()):
            yield f"pytorch_error.json: {key}: {name} is missing"
        for name in sorted(errors[key].keys() - names):
            yield f"pytorch_error.json: {key}: {name} does not belong here"
        for name, error in errors[key].items():
            numbers = error if key in seeds else [error]
            if not isinstance(numbers, list) or not numbers or not all(
                    isinstance(e, (int, float)) and 0 <= e < math.inf for e in numbers):
                expected = "a list of numbers" if key in seeds else "a number"
                yield f"pytorch_error.json: {key}: {name} is {error!r}, expected {expected}, not negative"
            elif key == "fp32" and error > 1e-2:
                yield f"pytorch_error.json: fp32: {name} is {error:.2g}: that is no rounding, two runs differed"
            elif key in seeds and (own := errors.get(key.removesuffix("_seeds"), {}).get(name, 0)) and not (
                    abs(numbers[0] - own) <= 0.01 * own):
                yield (f"pytorch_error.json: {key}: {name} begins with {numbers[0]}, but the dump's own error is "
                       f"{own:.3g}")


def operand_shapes(config: dict, N: int) -> dict[str, tuple[int, int, int]]:
    """N, IC, OC of each layer that an FP8 recipe may quantize."""
    C, FF, NH = (config[key] for key in ("hidden_size", "intermediate_size", "num_attention_heads"))
    HD, NKV = config.get("head_dim") or C // NH, config.get("num_key_value_heads") or NH
    products = {"qkv": (C, (NH + 2 * NKV) * HD), "o": (NH * HD, C), "gate_up": (C, 2 * FF), "down": (FF, C)}
    return {f"layers.{layer}.{p}": (N, *sizes) for layer in range(config["num_hidden_layers"])
            for p, sizes in products.items()}


def check_operands(path: Path, config: dict, N: int) -> Iterator[str]:
    """Names, types and shapes."""
    with open_tensors(path) as file:
        views = {name: file.get_slice(name) for name in file.keys()}
        found = {name: (view.get_dtype(), tuple(view.get_shape())) for name, view in views.items()}
    bf16, fp32, fp8 = {"BF16"}, {"F32"}, {"F8_E4M3", "F8_E5M2"}
    known = set()

    def problems(name: str, types: set[str], shapes: set[tuple[int, ...]]) -> Iterator[str]:
        known.add(name)
        if name not in found:
            yield f"{path.name}: {name} is missing"
        elif found[name][0] not in types:
            yield f"{path.name}: {name} is {found[name][0]}, expected {' or '.join(sorted(types))}"
        elif found[name][1] not in shapes:
            yield f"{path.name}: {name} has shape {found[name][1]}, expected {' or '.join(map(str, sorted(shapes)))}"

    for layer, (n, IC, OC) in operand_shapes(config, N).items():
        for source, shape in (("x", (n, IC)), ("w", (OC, IC)), ("dy", (n, OC))):
            yield from problems(f"{layer}.{source}", bf16, {shape})
        for direction, (R, S, K) in (("forward", (n, OC, IC)), ("dgrad", (n, IC, OC)), ("wgrad", (OC, IC, n))):
            stem = f"{layer}.{direction}"
            for letter, rows in (("a", R), ("b", S)):
                yield from problems(f"{stem}.{letter}", bf16 | fp8, {(rows, K)})
                if found.get(f"{stem}.{letter}", ("BF16",))[0] in fp8:
                    blocks = math.ceil(K / 128)
                    yield from problems(f"{stem}.scale_{letter}", fp32,
                                        {(), (rows,), (rows, blocks), (math.ceil(rows / 128), blocks)})
            yield from problems(f"{stem}.out", fp32, {(R, S)})
    yield from (f"{path.name}: {name} does not belong here" for name in sorted(found.keys() - known))


def check_dump(folder: Path) -> list[str]:
    """Everything that is wrong with a dump."""
    missing = [f"{name} is missing" for name in FILES if not (folder / name).is_file()]
    if missing:
        return missing
    try:
        config, recipe = read_json(folder / "config.json"), read_json(folder / "recipe.json")
        shapes = weight_shapes(config)
        problems = list(check_recipe(recipe))
        if problems:
            return problems
        V = config["vocab_size"]
        weights = read_tensors(folder / "model.safetensors", "F32", shapes)
        steps, B, T = batch_shape(folder / "batch.safetensors", recipe["steps"])
        ids = {"input_ids": (steps, B, T), "labels": (steps, B, T)}
        batch = read_tensors(folder / "batch.safetensors", "I32", ids, optional={"position_ids": (steps, B, T)})
        problems = list(check_batch(batch, V))
        if problems:
            return problems
        outputs = {"logits": (B, T, V), "loss": (steps,), "grad_norm": (steps,)}
        for name, shape in shapes.items():
            outputs |= {f"grad.{name}": shape, f"update.{name}": shape}
        expected = read_tensors(folder / "expected.safetensors", "F32", outputs)
        problems = list(check_expected(expected, weights, batch, recipe))
        problems += check_errors(read_json(folder / "pytorch_error.json"), outputs.keys(), recipe)
        if "quantization" in recipe:
            operands = folder / "operands.safetensors"
            problems += (check_operands(operands, config, B * T) if operands.is_file() else
                         [f"{operands.name} is missing"])
        return problems
    except Invalid as invalid:
        return str(invalid).split("\n")


def main() -> None:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    failed = False
    for folder in map(Path, sys.argv[1:]):
        problems = check_dump(folder)
        failed |= bool(problems)
        for problem in problems:
            print(f"{folder}: {problem}")
        if not problems:
            print(f"{folder}: ok")
    sys.exit(failed)


if __name__ == "__main__":
    main()
