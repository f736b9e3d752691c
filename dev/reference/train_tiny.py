"""Trains a Hugging Face Llama on the bytes of a text with plain PyTorch: the peer of the trainer's benchmark.

    python dev/reference/train_tiny.py --config config.json --text FILE --steps 200 --batch 8 --seq-len 256

fp32, sdpa attention, fused AdamW, no compilation.  The last tenth of the text is held out.  Warm-up of a tenth of the
steps, then a cosine to a tenth of the rate.
"""

import argparse
import math
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy
from transformers import LlamaConfig, LlamaForCausalLM

LOG_EVERY = 20
WARM_UP_STEPS = 5  # not timed: memory is allocated, kernels are chosen


def mean_loss(model: LlamaForCausalLM, tokens: Tensor) -> Tensor:
    """Mean loss in nats of predicting tokens[:, 1:]; tokens is (B, T+1)."""
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: LlamaForCausalLM, text: Tensor, batch: int, seq_len: int) -> float:
    """Mean over the windows of seq_len that the text holds, side by side."""
    count = (len(text) - 1) // seq_len
    windows = text[: count * seq_len + 1].unfold(0, seq_len + 1, seq_len)
    total = sum(mean_loss(model, part).item() * len(part) for part in windows.split(batch))
    return total / count


def main() -> None:
    parser = argparse.ArgumentParser(description="Trains a small Llama on bytes with PyTorch, and times it.")
    parser.add_argument("--config", type=Path, required=True, help="Hugging Face config.json; weights are random")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="sequences a step")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    if args.steps <= WARM_UP_STEPS:
        parser.error(f"--steps {args.steps}: the first {WARM_UP_STEPS} are not timed; take more")
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)

    text = torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long()
    split = len(text) * 9 // 10
    train, held_out = text[:split], text[split:]
    model = LlamaForCausalLM(LlamaConfig.from_json_file(args.config))
    matrices = [p for p in model.parameters() if p.dim() == 2]
    vectors = [p for p in model.parameters() if p.dim() != 2]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=args.lr, betas=(0.9, 0.95), fused=True)
    rise = max(args.steps // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, 0.55 + 0.45 * math.cos(math.pi * step / args.steps)))
    count = sum(p.numel() for p in model.parameters())
    attention = model.config._attn_implementation
    print(f"pytorch: {count / 1e6:.2f} M parameters, attention {attention}, {args.threads} threads")

    windows = train.unfold(0, args.seq_len + 1, 1)
    started = time.perf_counter()
    for step in range(args.steps):
        if step == WARM_UP_STEPS:
            started = time.perf_counter()
        loss = mean_loss(model, windows[torch.randint(len(windows), (args.batch,))])
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if (step + 1) % LOG_EVERY == 0 or step + 1 == args.steps:
            print(f"step {step + 1}/{args.steps} | loss {loss.item():.4f} | norm {norm.item():.2f}", flush=True)
    seconds = time.perf_counter() - started
    print(f"held-out loss: {held_out_loss(model, held_out, args.batch, args.seq_len):.4f} nats/byte")
    print(f"pytorch: {(args.steps - WARM_UP_STEPS) * args.batch * args.seq_len / seconds:.0f} tok/s")


if __name__ == "__main__":
    main()
