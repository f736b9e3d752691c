"""Hashes each kernel's machine code, so that two builds can be compared:

    python dev/test/machine_code.py OBJECT… [--cuobjdump PROGRAM]

Prints a line a kernel and architecture: the architecture, the kernel, the bytes of its code, their hash. The hash covers
the instructions alone (the section .text of the kernel), so moved lines and other debug information do not change it.
"""

import argparse
import hashlib
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from cuda_table import readable, stem


def sections(elf: bytes) -> Iterator[tuple[str, bytes]]:
    """The names and contents of the sections of a 64-bit ELF file (System V ABI, chapter 4)."""
    table, = struct.unpack_from("<Q", elf, 0x28)
    size, count, names_index = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * size) for i in range(count)]
    names = headers[names_index][4]
    for name, _, _, _, offset, length in headers:
        begin = names + name
        yield elf[begin:elf.index(b"\0", begin)].decode(), elf[offset:offset + length]


def kernels(path: Path, cuobjdump: str) -> Iterator[tuple[str, str, bytes]]:
    """(architecture, mangled name, code) of each kernel of an object."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([cuobjdump, "--extract-elf", "all", path.resolve()], cwd=folder, check=True, capture_output=True)
        for cubin in sorted(Path(folder).iterdir()):
            architecture = next(part for part in cubin.name.split(".") if part.startswith("sm_"))
            for name, code in sections(cubin.read_bytes()):
                if name.startswith(".text."):
                    yield architecture, name.removeprefix(".text."), code


def main() -> None:
    parser = argparse.ArgumentParser(description="Hashes each kernel's machine code.")
    parser.add_argument("objects", type=Path, nargs="+")
    parser.add_argument("--cuobjdump", default="cuobjdump")
    args = parser.parse_args()
    for path in sorted(args.objects):
        found = list(kernels(path, args.cuobjdump))
        names = readable([name for _, name, _ in found])
        for architecture, name, code in sorted(found):
            print(f"{architecture:8} {stem(path)}: {names[name]}  {len(code)}  {hashlib.sha256(code).hexdigest()[:16]}")


if __name__ == "__main__":
    main()
