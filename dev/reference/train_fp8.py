"""Trains the emulation, in FP8 or bf16, on given tokens: a loss curve to compare a program's with.

    python dev/reference/train_fp8.py DIR --fp8 rowwise --out losses.jsonl

DIR holds config.json, model.safetensors (initial weights, fp32), recipe.json (AdamW's, as of a parity dump; a
`quantization` in it is the default of --fp8) and batches.safetensors: input_ids, labels int32 (steps, B, T), or
(steps, k, B, T) of k micro-batches a step, and optionally learning_rates fp32 (steps), else the recipe's learning_rate.
Writes a line {"step": 0, "loss": 5.5, "grad_norm": 1.2, "ms": 87.5} for each, one thread.
"""

import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoConfig, PreTrainedConfig

import make_dump
from fp8 import Quantization


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains the emulation of FP8 or bf16 training on given tokens.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--fp8", metavar="RECIPE", help="off, a recipe or an object; default: recipe.json's, or off")
    parser.add_argument("--out", type=Path, help="default: standard output")
    parser.add_argument("--steps", type=int, help="default: all")
    args = parser.parse_args()
    torch.set_num_threads(1)

    config, weights = AutoConfig.from_pretrained(args.directory), load_file(args.directory / "model.safetensors")
    recipe = json.loads((args.directory / "recipe.json").read_text())
    batches = load_file(args.directory / "batches.safetensors")
    steps, *_, T = batches["labels"].shape
    steps = min(steps, args.steps or steps)
    entry = recipe.get("quantization")
    quantization = Quantization.parse(args.fp8) if args.fp8 else Quantization.of(entry) if entry else None
    rates = batches.get("learning_rates", torch.full((steps,), recipe["learning_rate"])).tolist()

    model = make_dump.emulation(config, T, quantization)
    optimizer = make_dump.AdamW(weights, recipe, torch.float32)
    out = args.out.open("w") if args.out else sys.stdout
    times = []
    for step in range(steps):
        begin = time.perf_counter()
        _, loss, grads = model.gradients(optimizer.weights, batches["input_ids"][step], batches["labels"][step])
        optimizer.recipe = recipe | {"learning_rate": rates[step]}
        norm = optimizer.update(grads)
        times.append(time.perf_counter() - begin)
        print(json.dumps({"step": step, "loss": loss.item(), "grad_norm": norm.item(),
                          "ms": round(1000 * times[-1], 2)}), file=out, flush=True)
    name = quantization.recipe if quantization else "bf16"
    print(f"{name}: {steps} steps, {1000 * statistics.median(times):.1f} ms each (median), last loss {loss.item():.4f}",
          file=sys.stderr)


if __name__ == "__main__":
    main()
