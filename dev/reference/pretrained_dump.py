"""Writes the parity dump of a model that has learnt something, fine-tuned on a text.

    python dev/reference/pretrained_dump.py MODEL TEXT --out DUMP [--steps 20] [--seq-len 64] [--skip 0] [--fp8 RECIPE]

MODEL: a folder with fp32 weights and a tokenizer.  TEXT: after so many tokens that are skipped, the next ones are the
batches, one sequence a step.  With --fp8 the dump has the errors of that recipe's emulation alone.
"""

import argparse
from pathlib import Path

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaConfig

from fp8 import Quantization
from make_dump import measure, save_dump

RECIPE = {"learning_rate": 3e-5, "beta1": 0.9, "beta2": 0.95, "eps": 1e-5, "weight_decay": 0.1, "grad_clip": 1.0}


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes the parity dump of a pretrained model.")
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seq-len", type=int, default=64)
    parser.add_argument("--skip", type=int, default=0, help="tokens at the beginning of the text")
    parser.add_argument("--fp8", default="off", metavar="RECIPE")
    args = parser.parse_args()
    steps, T = args.steps, args.seq_len
    ids = AutoTokenizer.from_pretrained(args.model)(args.text.read_text()).input_ids[args.skip:]
    tokens = torch.tensor(ids[: steps * T + 1], dtype=torch.int32)
    batch = {"input_ids": tokens[:-1].view(steps, 1, T).clone(), "labels": tokens[1:].view(steps, 1, T).clone()}
    quantization = Quantization.parse(args.fp8)
    config, weights = LlamaConfig.from_pretrained(args.model), load_file(args.model / "model.safetensors")
    recipe = RECIPE | {"steps": steps}
    # Eager attention would take a third longer.
    expected, errors, operands = measure(config, weights, batch, recipe, quantization,
                                         attentions=() if quantization else ("sdpa",))
    save_dump(args.out, config, weights, batch, recipe, quantization, expected, errors, operands)
    shown = ", ".join(f"{key} {error['logits']:.1e}" for key, error in errors.items() if error["logits"])
    print(f"{args.out}: {steps} steps of {T} tokens, loss {expected['loss'][0]:.4f} to {expected['loss'][-1]:.4f}; "
          f"PyTorch's error of the logits: {shown}")


if __name__ == "__main__":
    main()
