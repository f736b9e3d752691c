"""Simulates the main loop of a kernel of attention on one of the four sub-partitions of a multiprocessor."""

from dataclasses import dataclass, field

# Clocks until a result of one of these is there, as microbenchmarks publish them.
LATENCY = {"MUFU": 23, "LDS": 30, "LDSM": 33, "SHFL": 24, "S2UR": 25, "S2R": 25, "SYNCS": 25, "LDG": 500, "R2UR": 12}
OTHER_LATENCY, READ_LATENCY = 20, 8  # of what is not named; until a store or product has read its registers
TURNS = 12  # of the loop that are simulated; the first half fills the pipes


class SubPartition:
    """Issues the loop's instructions. Each clock one warp issues one: in its order, after its stall, when the scoreboards that
    it waits for are clear and its unit is free. The tensor core takes products in the order of their issue; a wgmma does not
    hold its warp. Its operands in shared memory are read while the product before it is computed, and it ends when both its
    reads and its computation have. The warps' own accesses of shared memory go first, and put the products' reads off. Data
    from TMA and cp.async is there in time; what TMA writes takes its share of shared memory's time."""

    def __init__(self, path, warps):
        self.path, self.marks, self.clock, self.last = path, [i.mark() for i in path], 0, 0
        self.free = dict.fromkeys((i.unit for i in path), 0)
        self.operands_read = self.product_began = 0  # of the last product
        self.turn = 0 if "bar_arrive" in self.marks else None  # the warpgroups take turns: each lets the next one go on
        self.warps = [Warp() for _ in range(warps)]

    def next(self, warp):
        place = warp.position % len(self.path)
        return self.path[place], self.marks[place]

    def earliest(self, number):
        """The clock at which a warp can issue its next instruction, or None if another warp must act before."""
        warp = self.warps[number]
        i, mark = self.next(warp)
        when = [warp.ready, *(warp.boards[b] for b in range(6) if i.control >> 11 & 1 << b)]
        if i.unit and i.stem != "HGMMA" and i.unit != "memory":
            when.append(self.free[i.unit])
        if mark.startswith("wgmma_wait"):
            when += warp.groups[:max(0, len(warp.groups) - int(mark[11:-1]))]
        if mark == "bar_sync" and self.turn is not None:
            return max(when) if self.turn == number else None
        if mark == "bar_sync" and "," not in i.operands:  # of all warps; else the others are in other sub-partitions
            for other in self.warps:
                if other.barriers == warp.barriers:
                    if self.next(other)[1] != "bar_sync":
                        return None
                    when.append(other.ready)
        return max(when)

    def issue(self, number, clock):
        warp = self.warps[number]
        i, mark = self.next(warp)
        warp.ready, self.clock, self.last = clock + max(1, i.control & 15), clock + 1, number
        if i.stem == "HGMMA":
            self.multiply(i, clock)
        elif i.unit and i.unit != "memory":
            self.free[i.unit] = max(self.free[i.unit], clock) + i.clocks[i.unit]
            if i.unit == "shared" and self.operands_read > clock:
                self.operands_read += i.clocks["shared"]
        if "gsb0" in i.operands and i.stem == "HGMMA":
            warp.groups.append(self.free["tensor"])
        if mark == "bar_arrive":
            self.turn = (number + 1) % len(self.warps)
        warp.barriers += mark == "bar_sync"
        for board, clocks in ((i.control >> 5 & 7, LATENCY.get(i.stem, OTHER_LATENCY)), (i.control >> 8 & 7, READ_LATENCY)):
            if board < 6:
                warp.boards[board] = max(warp.boards[board], clock + clocks)
        warp.position += 1

    def multiply(self, i, clock):
        """A wgmma that is issued at this clock occupies shared memory and the tensor core."""
        self.operands_read = max(self.operands_read, self.product_began, clock) + i.clocks["shared"]
        self.product_began = max(self.free["tensor"], clock)
        self.free["tensor"] = max(self.product_began + i.clocks["tensor"], self.operands_read)

    def turns(self, count):
        """Returns the clock at which all warps have gone through the loop so often."""
        while min(w.position for w in self.warps) < count * len(self.path):
            times = [(t, w == self.last, w) for w in range(len(self.warps)) if (t := self.earliest(w)) is not None]
            clock, _, number = min(times)
            self.issue(number, max(clock, self.clock))
        return self.clock


@dataclass
class Warp:
    position: int = 0  # in the loop, counted on from turn to turn
    ready: float = 0  # the clock of its next instruction
    boards: list = field(default_factory=lambda: [0] * 6)  # the clock at which each scoreboard is clear
    groups: list = field(default_factory=list)  # the clock at which each committed group of wgmmas ends
    barriers: int = 0  # passed


def simulate(path, warps):
    """Clocks of a turn of all warps, when the pipes have filled."""
    part = SubPartition(path, warps)
    return (-part.turns(TURNS // 2) + part.turns(TURNS)) / (TURNS - TURNS // 2)
