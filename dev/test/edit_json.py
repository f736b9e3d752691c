"""Changes a JSON file:  python3 dev/test/edit_json.py FILE STATEMENT

STATEMENT is Python that changes `j`, the content. If the file is one of a checkpoint, its manifest gets the new size
and XXH64, so that the program takes the file for its own.
"""

import json
import pathlib
import struct
import sys

MASK = (1 << 64) - 1
PRIMES = (11400714785074694791, 14029467366897019727, 1609587929392839161, 9650029242287828579, 2870177450012600261)


def rotated(x, bits):
    return ((x << bits) | (x >> (64 - bits))) & MASK


def one_round(lane, word):
    return rotated((lane + word * PRIMES[1]) & MASK, 31) * PRIMES[0] & MASK


def xxh64(data):
    """XXH64 with seed 0, as the specification of xxHash describes it."""
    stripes = len(data) // 32
    if stripes:
        lanes = [(PRIMES[0] + PRIMES[1]) & MASK, PRIMES[1], 0, -PRIMES[0] & MASK]
        for i, word in enumerate(struct.unpack_from(f"<{4 * stripes}Q", data)):
            lanes[i % 4] = one_round(lanes[i % 4], word)
        h = sum(rotated(lane, bits) for lane, bits in zip(lanes, (1, 7, 12, 18))) & MASK
        for lane in lanes:
            h = ((h ^ one_round(0, lane)) * PRIMES[0] + PRIMES[3]) & MASK
    else:
        h = PRIMES[4]
    h = (h + len(data)) & MASK
    rest = data[32 * stripes:]
    while len(rest) >= 8:
        h = (rotated(h ^ one_round(0, struct.unpack_from("<Q", rest)[0]), 27) * PRIMES[0] + PRIMES[3]) & MASK
        rest = rest[8:]
    if len(rest) >= 4:
        h = (rotated(h ^ struct.unpack_from("<I", rest)[0] * PRIMES[0] & MASK, 23) * PRIMES[1] + PRIMES[2]) & MASK
        rest = rest[4:]
    for byte in rest:
        h = rotated(h ^ byte * PRIMES[4] & MASK, 11) * PRIMES[0] & MASK
    h = (h ^ h >> 33) * PRIMES[1] & MASK
    h = (h ^ h >> 29) * PRIMES[2] & MASK
    return h ^ h >> 32


def main():
    path = pathlib.Path(sys.argv[1])
    content = json.loads(path.read_text())
    exec(sys.argv[2], {"j": content})
    path.write_text(json.dumps(content))
    manifest_path = path.parent / "manifest.json"
    manifest = json.loads(manifest_path.read_text()) if manifest_path.exists() else {}
    if path.name in manifest.get("files", {}):
        data = path.read_bytes()
        manifest["files"][path.name] = {"bytes": len(data), "xxh64": f"{xxh64(data):016x}"}
        manifest_path.write_text(json.dumps(manifest))


main()
