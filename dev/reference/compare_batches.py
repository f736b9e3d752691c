"""A program's tensors of the batches of make_batches.py: is it as far from float64 as the emulation, and close to that?

    python dev/reference/compare_batches.py DIR RESULTS.safetensors

Of each tensor, as root mean squares over the batches, e being the emulation's error (batch_errors.json):

    ratio     the program's error against float64, in units of e: logits' and each gradient's 0.85 to 1.15, their
              geometric mean 0.97 to 1.03; the first batch's loss is at most 2 e away from float64's
    distance  from the emulation itself, in units of e: at most 0.85, the geometric mean at most 0.65

A right program (gqa4, 24 batches: the trainer on a CPU) has ratios of 0.97 to 1.04 with a mean of 1.00, and distances
of 0.33 to 0.69 with a mean of 0.37 (powers of two as scales) to 0.57: it rounds the same numbers, except where its bf16
values before already differ. Two independent noises of size e would be 1.4 apart: so are other scales in the forward
products, though their ratios are right. The emulation's output gradients being e5m2, a program with e4m3 has distances
as a right one, but a mean ratio of 0.956; one that leaves one product of one block in bf16 has 0.94 to 0.97, and a mean
distance of 0.67 to 0.77. Other powers of two as scales move exponents and hardly anything else, and are not seen: rowwise
and blockwise have nearly the same results.

The loss and the gradients' norm are single numbers, whose errors are a matter of luck: beyond that first loss they are
not judged.
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

from make_batches import rms_errors

RATIO, MEAN_RATIO = (0.85, 1.15), (0.97, 1.03)
DISTANCE, MEAN_DISTANCE = 0.85, 0.65
NOT_JUDGED = ("loss", "grad_norm")


def by_batch(path: Path) -> list[dict]:
    tensors = {name: tensor.double() for name, tensor in load_file(path).items()}
    return [{name: tensor[i] for name, tensor in tensors.items()} for i in range(len(tensors["loss"]))]


def geometric_mean(numbers: list[float]) -> float:
    return float(np.exp(np.mean(np.log(numbers))))


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares a program's tensors with those of make_batches.py.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("results", type=Path)
    args = parser.parse_args()
    quantization = json.loads((args.directory / "settings.json").read_text())["quantization"]
    unit = json.loads((args.directory / "batch_errors.json").read_text())[
        quantization["recipe"] if quantization else "bf16"]
    want, emulated = (by_batch(args.directory / f"batches_{kind}.safetensors") for kind in ("expected", "emulated"))
    got = by_batch(args.results)
    if got[0].keys() != want[0].keys() or any(got[0][name].shape != want[0][name].shape for name in want[0]):
        sys.exit(f"{args.results}: other tensors than {args.directory}/batches_expected.safetensors")

    errors = rms_errors(got, want)
    # The distance has the floors of the errors: those of float64's tensors.
    apart = rms_errors([{name: g[name] - e[name] + w[name] for name in w} for g, e, w in zip(got, emulated, want)], want)
    problems, ratios, distances = [], [], []
    print(f"{'':60} {'e':>9} {'ratio':>6} {'distance':>9}")
    for name in errors:
        ratio, distance, mark = errors[name] / unit[name], apart[name] / unit[name], "not judged"
        if name not in NOT_JUDGED:
            ratios.append(ratio)
            distances.append(distance)
            right = RATIO[0] <= ratio <= RATIO[1] and distance <= DISTANCE
            mark = "" if right else "FAIL"
            if not right:
                problems.append(f"{name}: ratio {ratio:.3f}, distance {distance:.3f}")
        print(f"{name:60} {unit[name]:9.2e} {ratio:6.3f} {distance:9.3f}  {mark}".rstrip())
    mean_ratio, mean_distance = geometric_mean(ratios), geometric_mean(distances)
    if not MEAN_RATIO[0] <= mean_ratio <= MEAN_RATIO[1]:
        problems.append(f"geometric mean of the ratios: {mean_ratio:.3f}")
    if mean_distance > MEAN_DISTANCE:
        problems.append(f"geometric mean of the distances: {mean_distance:.3f}")
    first = abs(got[0]["loss"] / want[0]["loss"] - 1).item() / unit["loss"]
    if first > 2:
        problems.append(f"first loss: {first:.2f} of the emulation's error")
    print(f"ratios {min(ratios):.3f} to {max(ratios):.3f}, geometric mean {mean_ratio:.3f}; distances "
          f"{min(distances):.3f} to {max(distances):.3f}, geometric mean {mean_distance:.3f}; first loss {first:.2f} e away")
    for problem in problems:
        print("FAIL:", problem)
    sys.exit(bool(problems))


if __name__ == "__main__":
    main()
