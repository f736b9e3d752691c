"""The machine code of kernels, and the loop in which each spends its time."""

import re
import sys
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "test"))
from cuda_table import run  # noqa: E402

PRODUCTS, LOADS, STORES = ("HGMMA", "HMMA"), ("LDG", "LDGSTS", "UTMALDG"), ("STG", "RED", "UTMASTG")
WAITS = (  # an instruction, and the wrapper that it comes from
    ("BAR.ARV", "bar_arrive"), ("BAR.", "bar_sync"), ("WARPGROUP.ARRIVE", "wgmma_fence"), ("WARPGROUP.DEPBAR", "wgmma_wait"),
    ("SYNCS.PHASECHK", "mbarrier_wait"), ("SYNCS.ARRIVE", "mbarrier_arrive"), ("SYNCS.", "mbarrier"),
    ("DEPBAR", "cp_async_wait"))


@dataclass
class Instruction:
    address: int
    guard: str
    name: str  # with its modifiers
    operands: str
    control: int  # the stall count and scoreboards that the compiler chose
    unit: str = ""
    clocks: dict = field(default_factory=dict)  # unit: clocks of a sub-partition

    @property
    def stem(self):
        return self.name.split(".")[0]

    def target(self):
        """The address that a branch goes to, or None."""
        return int(re.findall(r"0x([0-9a-f]+)", self.operands)[-1], 16) if self.stem == "BRA" else None

    def mark(self):
        """The name of a wait or barrier, or the letter of an instruction that is counted between them: a product (T), an
        exponential (M), a load (L) or store (S) of device memory."""
        name = next((text for start, text in WAITS if self.name.startswith(start)), None)
        if name == "bar_arrive" and self.operands.startswith("0xf"):
            return "compute_before_wait"  # nobody arrives there
        if name and "DEPBAR" in self.name:
            return f"{name}<{int(self.operands.split('0x')[-1].strip(), 16)}>"
        return name or ("T" if self.stem in PRODUCTS else "M" if self.stem == "MUFU" else
                        "L" if self.stem in LOADS else "S" if self.stem in STORES else "")


def bytes_of(name):
    """Bytes that a lane moves: the width in the name, or a word."""
    width = re.search(r"\.(U8|S8|U16|S16|64|128)\b", name)
    return {"U8": 1, "S8": 1, "U16": 2, "S16": 2, "64": 8, "128": 16}[width[1]] if width else 4


def functions(cuobjdump, path):
    """(architecture, mangled name, instructions) of each kernel of an object."""
    arch, name, found = "", "", []
    code = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@(!?U?P\w+)\s+)?([A-Z][A-Z0-9_.a-z]*)\s*([^;]*);\s*/\* 0x\w+ \*/")
    for line in run(cuobjdump, "-sass", path).splitlines():
        if match := re.match(r"\s*arch = (\w+)", line):
            arch = match[1]
        elif match := re.match(r"\s*Function\s?:?\s(\w+)", line):
            name = match[1]
            found.append((arch, name, []))
        elif match := code.search(line):
            found[-1][2].append(Instruction(int(match[1], 16), match[2] or "", match[3], match[4], 0))
        elif match := re.match(r"\s+/\* 0x(\w{16}) \*/$", line):
            found[-1][2][-1].control = int(match[1], 16) >> 41
    return found


def order_of(path):
    """The waits of a loop, and how many products, exponentials, loads and stores are between them."""
    words, counts = [], {}
    for mark in [i.mark() for i in path] + ["end"]:
        if len(mark) == 1:
            counts[mark] = counts.get(mark, 0) + 1
        elif mark:
            words += [f"{counts[letter]}{letter}" for letter in "TMLS" if letter in counts] + [mark]
            counts = {}
    return " ".join(words[:-1])


def works(i):
    """Says whether an instruction is the purpose of its loop: a product, or an access of 16 bytes."""
    return i.stem in PRODUCTS or i.stem in LOADS + STORES and bytes_of(i.name) == 16


def way(code, at, first, ends):
    """Indices of the instructions from the first to one of the ends: of the ways forward the shortest of those with the most
    work. It skips the masks of the diagonal, and what is done for the last elements."""
    best = {k: (0, 0, None) for k in ends}  # from an instruction on: the work, minus the instructions, the next one
    for k in range(max(ends) - 1, first - 1, -1):
        to = at.get(code[k].target(), -1)
        ways = [to] if to > k else []
        if code[k].stem not in ("BRA", "EXIT") or code[k].guard:
            ways.append(k + 1)
        if ways := [(*best[n][:2], n) for n in ways if n in best]:
            work, instructions, after = max(ways)
            best[k] = (work + works(code[k]), instructions - 1, after)
    path, k = [], first if first in best else None
    while k is not None:
        path.append(k)
        k = best[k][2]
    return path


def main_loop(code, has, products=0):
    """The instructions of one turn of the loop that does the work: of those that hold what `has` says (letters of `mark`) the
    smallest with at least a third of the most work; without letters all of the kernel. `products`: see `unrolled`."""
    at = {i.address: k for k, i in enumerate(code)}
    loops = sorted((k - at[i.target()], at[i.target()], [k]) for k, i in enumerate(code) if at.get(i.target(), k) < k)
    if not has:
        loops = [(0, 0, [k for k, i in enumerate(code) if i.stem == "EXIT" and not i.guard])]
    paths = [way(code, at, first, ends) for _, first, ends in loops]
    paths = [path for path in paths if set(has) <= {code[k].mark() for k in path}]
    work = [sum(works(code[k]) for k in path) for path in paths]
    if not any(work):
        sys.exit(f"FAIL: no loop with {has}")
    return [code[k] for k in unrolled(next(p for p, w in zip(paths, work) if 3 * w >= max(work)), code, at, products)]


def unrolled(path, code, at, products):
    """The path, with the loops within it as often as the products of a tile say (0: as they are)."""
    inner = []
    for place, k in enumerate(path[:-1]):
        if code[k].stem == "BRA" and at.get(code[k].target(), k) < k and at[code[k].target()] in path:
            first = path.index(at[code[k].target()])
            if any(code[n].stem in PRODUCTS for n in path[first:place]):
                inner.append((first, place + 1))
    count = lambda part: sum(code[k].stem in PRODUCTS for k in part)  # noqa: E731
    inside = sum(count(path[a:b]) for a, b in inner)
    if not products or count(path) == products:
        return path
    turns, rest = divmod(products - count(path) + inside, inside or 1)
    if rest or not inside:
        sys.exit(f"FAIL: {count(path)} products in the loop, {inside} of them in loops within: never {products} a tile")
    for first, end in reversed(inner):
        path[first:end] = turns * path[first:end]
    return path
