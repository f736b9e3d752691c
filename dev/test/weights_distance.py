#!/usr/bin/env python3
"""How far the weights of models lie apart: the relative L2 distance over all numbers of safetensors files of F32.

dev/test/weights_distance.py FILE OTHER…        a line for each other: its distance from FILE, and its name
dev/test/weights_distance.py --pairs FILE…      a line for each pair: its distance, and both names

The distance of B from A is |A - B| / |A|, in double precision. The files must hold the same tensors, in any order.
"""

import array
import json
import math
import pathlib
import struct
import sys


def read(path):
    """The numbers of each tensor, by name."""
    data = pathlib.Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, about in header.items():
        if name == "__metadata__":
            continue
        if about["dtype"] != "F32":
            sys.exit(f"{path}: {name} is stored as {about['dtype']}, expected F32")
        begin, end = about["data_offsets"]
        numbers = array.array("f", data[8 + length + begin : 8 + length + end])
        if len(numbers) != math.prod(about["shape"]):
            sys.exit(f"{path}: {name} has {len(numbers)} numbers, its shape is {about['shape']}")
        if sys.byteorder == "big":
            numbers.byteswap()
        tensors[name] = numbers
    return tensors


def distance(a, b, names):
    if a.keys() != b.keys() or any(len(a[name]) != len(b[name]) for name in a):
        sys.exit(f"{names[0]} and {names[1]} hold different tensors")
    difference = math.fsum((x - y) ** 2 for name in a for x, y in zip(a[name], b[name]))
    size = math.fsum(x * x for name in a for x in a[name])
    if not math.isfinite(difference) or size == 0:
        sys.exit(f"{names[0]} and {names[1]}: numbers that are not finite, or nothing but zeros")
    return math.sqrt(difference / size)


def main():
    pairs = sys.argv[1:2] == ["--pairs"]
    paths = sys.argv[2 if pairs else 1 :]
    if len(paths) < 2:
        sys.exit(__doc__)
    models = [read(path) for path in paths]
    for i in range(len(models) if pairs else 1):
        for k in range(i + 1, len(models)):
            names = ([paths[i]] if pairs else []) + [paths[k]]
            print(f"{distance(models[i], models[k], (paths[i], paths[k])):.3e}", *names)


main()
