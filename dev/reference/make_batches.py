"""Errors of FP8 training, and of bf16, as root mean squares over several batches: a yardstick steady enough for a band.

    python dev/reference/make_batches.py dev/reference/dumps/gqa4 --fp8 rowwise --batches 6 --out build/batches

The model is a dump's, or that of any directory with config.json and model.safetensors.  Written are

    config.json  model.safetensors       the model's
    settings.json                        {"quantization": as in recipe.json}; null if it is off
    batches.safetensors                  input_ids, labels: int32 (batches, B, T), random, as in batch.safetensors
    batches_expected.safetensors         in float64, rounded to fp32, of each batch: logits (batches, B, T, V), loss and
                                         grad_norm (batches), grad.<name> (batches, its shape); all of the same weights
    batches_emulated.safetensors         the same, of emulation.py in this recipe (in bf16 if it is off)
    batch_errors.json                    {"bf16": {tensor: e}, "<recipe>": {tensor: e}}: what emulation.py errs by

e is the root mean square over the batches of the error that README.md tells for pytorch_error.json, each with the floor
of its own batch.  Delayed scaling takes current scales here: each batch is a first step.

How far a program is from the emulation says more than how far it is from float64.  In units of e, by the same formula,
a right program (other orders of additions, probabilities not rounded) is 0.15 to 0.7 away; one with other scales in the
forward products 1.2 to 1.6, though it errs as much: all recipes do, within 10%.
"""

import argparse
import json
import math
import shutil
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, PreTrainedConfig

import make_dump
from emulation import Emulation
from fp8 import Quantization, Tensors
from optimizer import global_norm


def results_of(logits: Tensor, loss: Tensor, grads: Tensors) -> Tensors:
    return {"logits": logits, "loss": loss, "grad_norm": global_norm(grads.values())} | {
        f"grad.{name}": g for name, g in grads.items()}


def emulated(model: Emulation, weights: Tensors, batches: Tensors, i: int) -> Tensors:
    return results_of(*model.gradients(weights, batches["input_ids"][i], batches["labels"][i]))


def expected(config: PreTrainedConfig, weights: Tensors, batches: Tensors) -> list[Tensors]:
    """By Hugging Face's model in float64."""
    model = make_dump.build_model(config, weights, torch.float64, "sdpa")
    results = []
    with sdpa_kernel(SDPBackend.MATH):
        for i in range(len(batches["labels"])):
            model.zero_grad()
            logits = model(**make_dump.inputs_of(config, batches, i, torch.float64)).logits
            loss = make_dump.mean_loss(logits, batches["labels"][i])
            loss.backward()
            grads = {name: p.grad.clone() for name, p in model.named_parameters()}
            results.append(results_of(logits.detach(), loss.detach(), grads))
    return results


def error(name: str, got: Tensor, want: Tensors) -> float:
    """|got - want| / max(|want|, floor), L2."""
    floor = want["grad_norm"].item() / 1000 if name.startswith("grad.") else 0.0
    return (got.double() - want[name]).norm().item() / max(want[name].norm().item(), floor)


def rms_errors(got: list[Tensors], want: list[Tensors]) -> dict[str, float]:
    return {name: math.sqrt(np.mean([error(name, g[name], w) ** 2 for g, w in zip(got, want)]))
            for name in sorted(want[0])}


def write_batches(model: Path, out: Path, quantization: Quantization | None, shape: tuple[int, int, int],
                  seed: int) -> dict[str, dict[str, float]]:
    """`shape` is (batches, B, T).  Returns the errors."""
    config, weights = AutoConfig.from_pretrained(model), load_file(model / "model.safetensors")
    rng = np.random.default_rng(seed)
    n, B, T = shape
    tokens = torch.from_numpy(rng.integers(0, config.vocab_size, (n, B, T + 1), dtype=np.int32))
    batches = {"input_ids": tokens[:, :, :-1].contiguous(), "labels": tokens[:, :, 1:].contiguous()}
    want = expected(config, weights, batches)
    errors, got = {}, want
    for settings in (None, quantization) if quantization else (None,):
        # A model of its own for each: a first step.
        got = [emulated(make_dump.emulation(config, T, settings), weights, batches, i) for i in range(n)]
        errors[settings.recipe if settings else "bf16"] = rms_errors(got, want)
    out.mkdir(parents=True, exist_ok=True)
    for file in ("config.json", "model.safetensors"):
        shutil.copyfile(model / file, out / file)
    (out / "settings.json").write_text(
        json.dumps({"quantization": quantization.json() if quantization else None}, indent=2) + "\n")
    save_file(batches, out / "batches.safetensors")
    save_file({name: torch.stack([w[name] for w in want]).float() for name in want[0]},
              out / "batches_expected.safetensors")
    save_file({name: torch.stack([g[name] for g in got]).float() for name in want[0]},
              out / "batches_emulated.safetensors")
    (out / "batch_errors.json").write_text(json.dumps(errors, indent=1) + "\n")
    return errors


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes several batches, and the emulation's root mean square errors.")
    parser.add_argument("model", type=Path, help="a dump, or a directory with config.json and model.safetensors")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--fp8", metavar="RECIPE", help="off, a recipe or an object; default: the dump's, or off")
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("-B", type=int, help="sequences a batch; default: the dump's")
    parser.add_argument("-T", type=int, help="tokens a sequence; default: the dump's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    B, T = args.B, args.T
    if not (B and T):
        _, dump_B, dump_T = load_file(args.model / "batch.safetensors")["labels"].shape
        B, T = B or dump_B, T or dump_T
    if args.fp8:
        quantization = Quantization.parse(args.fp8)
    else:
        recipe = args.model / "recipe.json"
        entry = json.loads(recipe.read_text()).get("quantization") if recipe.is_file() else None
        quantization = Quantization.of(entry) if entry else None
    errors = write_batches(args.model, args.out, quantization, (args.batches, B, T), args.seed)
    print(f"{'root mean square of ' + str(args.batches) + ' batches':60} {' '.join(f'{key:>10}' for key in errors)}")
    for name in errors["bf16"]:
        print(f"{name:60} {' '.join(f'{of[name]:10.2e}' for of in errors.values())}")


if __name__ == "__main__":
    main()
