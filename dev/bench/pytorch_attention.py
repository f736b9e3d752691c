"""Times PyTorch's attention kernels (flash, cuDNN) at the shapes of a benchmark's output, and prints its figures, too.

    build/cuda/kernels/attention_mma bench > ours; python dev/bench/pytorch_attention.py ours     (dev/bench/attention)

Reads lines such as "forward  bf16 B=8 T=1024 NH=32 NKV=8 HD=64 … 123.4 us".  Causal, bf16, grouped queries.  FLOPs as
the benchmark counts them: 4 HD a pair of query and key that the mask leaves forward, 2.5 times that backward.
"""

import re
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
LINE = re.compile(r"(forward|backward)\s+bf16 B=(\d+) T=(\d+) NH=(\d+) NKV=(\d+) HD=(\d+)\s+([\d.]+) us")
ROUNDS = 20


def microseconds(call: Callable[[], object]) -> float:
    """The median of ROUNDS, after three that are not counted."""
    times = []
    for _ in range(ROUNDS + 3):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        call()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    return sorted(times[3:])[ROUNDS // 2]


def time_backend(backend: SDPBackend, direction: str, B: int, T: int, NH: int, NKV: int, HD: int) -> float:
    """Microseconds of one direction at (B, heads, T, HD), as a training has it: q, k, v need gradients."""
    make = lambda heads: torch.randn(B, heads, T, HD, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    q, k, v = make(NH), make(NKV), make(NKV)
    with sdpa_kernel(backend):
        attend = lambda: scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=NH != NKV)
        if direction == "forward":
            return microseconds(attend)
        out = attend()
        dout = torch.randn_like(out)
        return microseconds(lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True))


def main() -> None:
    print(f"torch {torch.__version__}, {torch.cuda.get_device_name()}")
    for match in LINE.finditer(Path(sys.argv[1]).read_text()):
        direction, *shape = match.group(1), *map(int, match.groups()[1:6])
        B, T, NH, NKV, HD = shape
        ours = float(match[7])
        flops = 4 * HD * B * NH * T * (T + 1) / 2 * (2.5 if direction == "backward" else 1)
        line = f"{direction:8} B={B} T={T} NH={NH} NKV={NKV} HD={HD}: ours {ours:.0f} us, {flops / ours * 1e-6:.0f} TFLOP/s"
        for name, backend in BACKENDS.items():
            try:
                theirs = time_backend(backend, direction, *shape)
            except RuntimeError as error:  # a backend that does not take the shape
                line += f" | {name}: {str(error).splitlines()[0][:60]}"
                continue
            line += f" | {name} {theirs:.0f} us, {flops / theirs * 1e-6:.0f} TFLOP/s, {ours / theirs:.2f} times as fast"
        print(line, flush=True)


if __name__ == "__main__":
    main()
