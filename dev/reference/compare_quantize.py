"""Compares a program's quantization to FP8 with the emulation's, to the bit: matrices that are hard on scales and roundings, in all
ways that products want.

    python dev/reference/compare_quantize.py PROGRAM

PROGRAM IN OUT, as dev/test/quantize_matrices.cpp: its head says what the files hold.  Exit code 1 if anything differs.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from check_operands import difference
from fp8 import BF16, FORMATS, Tensors, quantize

generator = torch.Generator().manual_seed(0)
GROUPS = {"tensor": "tensor", "row": "row", "one": "tensor", "1x128": "1x128", "128x128": "128x128"}


def random(*shape: int) -> Tensor:
    return torch.randn(shape, generator=generator).to(BF16)


def every_bf16() -> Tensor:
    """All finite ones, as a matrix."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16).view(BF16)
    return bits[bits.isfinite()].view(255, -1)


def hostile_tensors() -> Tensors:
    """Matrices whose dimensions are no multiples of 16 or 128, but for the first."""
    tensors = {"random": random(256, 384), "odd": random(37, 131), "one entry": random(1, 1), "narrow": random(300, 3),
               "zeros": torch.zeros(21, 150, dtype=BF16), "negative zeros": -torch.zeros(5, 7, dtype=BF16),
               "every bf16": every_bf16()}
    tensors["subnormal"] = (random(33, 140).float() * 2.0**-130).to(BF16)
    tensors["huge"] = (random(17, 129).float() * 2.0**125).to(BF16).clamp(-3e38, 3e38)
    tensors["outlier"] = random(50, 200)
    tensors["outlier"][7, 130] = 1e6
    tensors["zero rows"] = random(40, 260)
    tensors["zero rows"][::3] = 0
    tensors["zero rows"][:, 128:256] = -0.0
    for exponent in (-20, 0, 9):  # amax a power of two; and just below one, where the product rounds up to it
        below = (torch.rand(31, 170, generator=generator).to(BF16) - 0.5).mul(2.0**exponent)
        below[3, 5] = 2.0**exponent
        tensors[f"up to 2^{exponent}"] = below
        tensors[f"nearly 2^{exponent}"] = below.clamp(max=2.0**exponent * (1 - 2**-8))
    return tensors


def several_shapes() -> Tensors:
    """Random ones, whose rows and columns are of many sizes."""
    tensors: Tensors = {}
    for R, K in ((16, 16), (128, 128), (1, 16), (16, 1), (129, 127), (7, 1000), (200, 384), (513, 24), (260, 516)):
        sizes = [2.0 ** torch.randint(-8, 8, shape, generator=generator) for shape in ((R, 1), (1, K))]
        tensors[f"uneven {R}x{K}"] = (random(R, K).float() * sizes[0] * sizes[1]).to(BF16)
    return tensors


def expected(matrices: Tensors) -> Tensors:
    result: Tensors = {}
    for name, x in matrices.items():
        for orientation, t in (("rows", x), ("columns", x.t().contiguous())):
            for format_name, format in FORMATS.items():
                for words, groups in GROUPS.items():
                    for pow2 in (False, True):
                        operand = quantize(t, format, groups, pow2)
                        stem = f"{name}.{orientation}.{format_name}.{words}.{'pow2' if pow2 else 'any'}"
                        result |= {f"{stem}.data": operand.data, f"{stem}.inverse": operand.inverse}
    return result


def differences(got: Tensors, want: Tensors) -> list[str]:
    odd = [f"{name} {'is missing' if name in want else 'is not asked for'}" for name in got.keys() ^ want.keys()]
    pairs = ((name, difference(got[name], t)) for name, t in want.items() if name in got)
    return odd + [f"{name}: {words}" for name, words in pairs if words]


def one_bit_off(t: Tensor) -> Tensor:
    """The last of the last number."""
    t = t.clone(memory_format=torch.contiguous_format)
    t.view(-1)[-1:].view({1: torch.uint8, 4: torch.int32}[t.element_size()]).bitwise_xor_(1)
    return t


def main() -> None:
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        sys.exit(__doc__)
    torch.set_num_threads(1)
    matrices = hostile_tensors() | several_shapes()
    want = expected(matrices)
    with tempfile.TemporaryDirectory() as scratch:
        source, out = Path(scratch) / "in.safetensors", Path(scratch) / "out.safetensors"
        save_file({name: x.contiguous() for name, x in matrices.items()}, source)
        subprocess.run([sys.argv[1], source, out], check=True)
        got = load_file(out)
    wrong = differences(got, want)
    for line in wrong[:20]:
        print(line)
    for name in matrices:
        names = [key for key in want if key.startswith(name + ".")]
        count = sum(want[key].numel() for key in names if key.endswith(".data"))
        bad = sum(line.startswith(name + ".") for line in wrong)
        print(f"{'FAIL' if bad else 'ok  '} {name}, {' x '.join(map(str, matrices[name].shape))}: {len(names) // 2} operands, "
              f"{count} bytes, {bad} tensors differ")
    unseen = [name for name, t in got.items() if not differences({name: one_bit_off(t)}, {name: want[name]})]
    print(f"{'FAIL' if unseen else 'ok  '} one bit off is seen in each of {len(got)} tensors")
    sys.exit(len(wrong) + len(unseen) > 0)


if __name__ == "__main__":
    main()
