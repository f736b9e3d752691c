"""Lists the checks in their order: broken parts should show early, and speed comes before completeness."""

from dataclasses import dataclass, field
from typing import Callable

import checks
from checks import ROOT

DUMPS = sorted((ROOT / "dev/reference/dumps").iterdir())
KERNELS = sorted(path.stem for path in (ROOT / "dev/kernels").glob("*.cu"))

# Facts that checks take for granted (needs), and that their failure puts out of order (breaks).
BUILD, HOPPER, HOPPER_ATTENTION, MMA_ATTENTION = "the build", "Hopper's instructions", "Hopper's attention", "attention by mma"
TRAINING, ONE_B, FP8 = "training", "training of 1B", "training in FP8"
WINDOWS, RANKS = "NCCL's windows", "NCCL between two processes"


@dataclass(frozen=True)
class Check:
    name: str  # part/check
    proves: str
    does: Callable  # takes a Job
    expected: int  # seconds on an H100 with 16 cores; a call with less time left does not begin it
    limit: int  # seconds after which it counts as hung
    needs: tuple = ()  # facts, or names of checks
    breaks: tuple = ()
    instead_of: str = ""  # only tried if this check has failed
    gpu: bool = False  # the CPU's build cannot do it
    rate: bool = False  # says nothing without a GPU's speed: no rehearsal does it


@dataclass
class Detours:
    """Knows the broken facts, and the options and variables that go round them."""

    hopper: bool  # this GPU is one
    broken: dict = field(default_factory=dict)  # a fact: the check that found it broken

    def attention(self, head_size):
        """Returns options for a bf16 model of this head size. By itself a model takes tensor cores for 64 and 128."""
        if head_size not in (64, 128) or (self.hopper and HOPPER_ATTENTION not in self.broken):
            return ()
        if MMA_ATTENTION in self.broken:
            return ("--attention", "plain")
        return ("--attention", "mma") if self.hopper else ()

    def nccl(self):
        """Returns environment variables for several ranks."""
        return {"NCCL_WIN_ENABLE": 0} if WINDOWS in self.broken else {}

    def taken(self):
        """Returns a sentence for each way round that was taken."""
        way = " ".join(self.attention(64))
        return [f"Models with heads of 64 and 128 ran with {way}."] * bool(way) + [
            f"Ranks ran with {name}={value}." for name, value in self.nccl().items()]


# Name, what it proves, the facts that its failure breaks.
WRAPPERS = (
    ("probe", "Shuffles, sums, barriers and asynchronous copies do what the kernels expect.", ()),
    ("number", "Conversions between fp32, bf16 and both FP8 formats round as they should.", ()),
    ("tensor_core", "ldmatrix and mma.sync have the fragment layouts that the kernels expect.", (MMA_ATTENTION,)),
    ("hopper", "wgmma's descriptors, TMA's boxes, mbarriers and setmaxnreg work.", (HOPPER, HOPPER_ATTENTION)),
)
ATTENTION = (
    ("attention", "Plain attention agrees with a reference in higher precision.", ()),
    ("attention_mma", "Attention by mma.sync agrees with it.", (MMA_ATTENTION,)),
    ("attention_hopper", "Attention for Hopper (TMA, wgmma, warpgroups in turns) agrees with it.", (HOPPER_ATTENTION,)),
)
PYTORCH_8B = ("--model", checks.EIGHT_B, "--layers", 6, "--seq-len", 8192, "--batch", 1)  # PyTorch takes 20 bytes a parameter
ZERO0, ZERO3 = ("--zero-stage", 0), ("--zero-stage", 3)
TENSOR, CONTEXT = ("--tensor-parallel-degree", 2), ("--context-parallel-degree", 2)
IN_FP8 = ("--fp8", "tensorwise")
OFFLOAD = ("--layers", 6, "--activation-offload", "attention", "--offload-optimizer", "--offload-gradients",
           "--offload-weights")


def part_of(kernel):
    """Returns the part in which a kernel program is checked."""
    parts = {"wrappers": WRAPPERS, "attention": ATTENTION}
    return next((part for part, rows in parts.items() if kernel in [name for name, _, _ in rows]), "kernels")


def numbers():
    """From nothing to right numbers: the machine, the build, the instructions, attention, parity."""
    yield Check("machine/needs", "Nothing that the build needs is missing.", checks.needs, 5, 60, breaks=(BUILD,))
    yield Check("machine/build", "The programs compile and link here.", checks.build, 5, 1200, (BUILD,), (BUILD,))
    for name, proves, breaks in WRAPPERS:
        yield Check(f"wrappers/{name}", proves, checks.kernel_check(name), 4, 60, (BUILD,), breaks)
    for name, proves, breaks in ATTENTION:
        needs = (BUILD, HOPPER) if name == "attention_hopper" else (BUILD,)
        yield Check(f"attention/{name}", proves, checks.kernel_check(name), 12, 120, needs, breaks)
    for dump in DUMPS:
        proves = "Logits, losses, gradients and updates are PyTorch's, within the limits of the precision."
        yield Check(f"parity/{dump.name}", proves, checks.parity(dump), 2, 60, (BUILD,))


def first_speed():
    """Whether it trains, and the figures that are asked for first."""
    yield Check("train/quickstart", "The bundled model trains, samples and exports.", checks.quickstart, 10, 90, (BUILD,),
                (TRAINING,))
    yield Check("1b/bf16", "Llama-3.2-1B trains in bf16; its step by class of work.", checks.one_b(title="1B bf16"), 25, 120,
                (BUILD, TRAINING), (ONE_B,))
    yield Check("1b/fp8", "Llama-3.2-1B trains with FP8 products (tensorwise).",
                checks.one_b(*IN_FP8, title="1B FP8 tensorwise"), 25, 120, (BUILD, ONE_B), (FP8,))
    yield Check("pytorch/attention", "Attention against flash and cuDNN; its limits on a Hopper.", checks.attention_rates, 40,
                120, (BUILD, MMA_ATTENTION), rate=True)


def peers():
    """The rates that other projects publish, by their own protocols."""
    for row in checks.PEERS:
        yield Check(f"peers/{row.name.replace('/', '-')}", "Ours by the protocol of another project's published figure.",
                    checks.peer(row), row.expected, 4 * max(row.expected, 30),
                    (BUILD, ONE_B, HOPPER_ATTENTION, *((FP8,) if "FP8" in row.title else ())), rate=row.in_turn)


def show(of_ranks):
    """2000 steps on real text, in each precision; a kill changes no bit. Two ranks come after what proves NCCL."""
    for run in checks.SHOW:
        needs = (BUILD, TRAINING, HOPPER_ATTENTION, *((FP8,) if run.options.get("fp8") else ()), *((RANKS,) if of_ranks else ()))
        if (run.ranks > 1) == of_ranks:
            yield Check(f"show/{run.name}", run.proves, checks.show(run), run.seconds, run.limit + 60, needs, gpu=of_ranks,
                        rate=run.pytorch)


def same_bits():
    """Graphs, and several ranks on the one GPU."""
    for name, options, needs in (("bf16", (), ()), ("fp8", IN_FP8, (FP8,)), ("offload", OFFLOAD, ()),
                                 ("delayed", ("--fp8", "delayed", "--fp8-stats", 5), (FP8,))):
        yield Check(f"graphs/{name}", "A launched graph has the bits of a step operation by operation.", checks.graphs(*options), 8, 60,
                    (BUILD, TRAINING, *needs))
    yield Check("graphs/heads64", "The same with attention on tensor cores.",
                checks.graphs_on_tensor_cores, 20, 90, (BUILD, ONE_B))
    yield Check("ranks/collectives", "NCCL's collectives are right between two processes.", checks.collectives, 15, 120,
                (BUILD,), (WINDOWS,), gpu=True)
    yield Check("ranks/without_windows", "They are right with NCCL_WIN_ENABLE=0.", checks.collectives, 15, 120, (BUILD,),
                (RANKS,), instead_of="ranks/collectives", gpu=True)
    yield Check("ranks/absent", "A rank that stays away ends the other with a reason.",
                checks.fails_clearly("waited 20 s", "stay-away", 1), 85, 200, (BUILD, RANKS), gpu=True)
    yield Check("ranks/failing", "A rank that fails ends the other with its reason.",
                checks.fails_clearly("trouble of one rank", "fail-one", 1), 30, 200, (BUILD, RANKS), gpu=True)
    for name, way in (("zero0", ZERO0), ("zero3", ZERO3), ("tensor", TENSOR), ("context", CONTEXT)):
        yield Check(f"ranks/{name}", "Two ranks have the losses of one, up to the order of sums.", checks.two_ranks(*way), 40,
                    200, (BUILD, TRAINING, RANKS), gpu=True)
    for name, way, needs in (("zero3", ZERO3, ()), ("fp8_gather", (*ZERO3, *IN_FP8, "--fp8-all-gather"), (FP8,)),
                             ("tensor", (*TENSOR, *IN_FP8), (FP8,)), ("context", CONTEXT, ())):
        yield Check(f"ranks/graphs_{name}", "A graph with NCCL's collectives has the same bits.", checks.graphs(*way, ranks=2),
                    30, 200, (BUILD, TRAINING, RANKS, *needs), gpu=True)


def the_rest():
    """Every other kernel, recipe and size."""
    for name in KERNELS:
        if part_of(name) == "kernels":
            yield Check(f"kernels/{name}", "The kernels agree with a reference in higher precision.",
                        checks.kernel_check(name), 8, 200, (BUILD,))
    yield Check("train/tuned", "Tuned products read from a file are those that were found.", checks.tuned, 15, 90,
                (BUILD, TRAINING))
    for recipe in ("delayed", "rowwise", "rowwise-hp-wgrad", "blockwise"):
        yield Check(f"1b/{recipe}", f"Llama-3.2-1B trains with --fp8 {recipe}.",
                    checks.one_b("--fp8", recipe, title=f"1B FP8 {recipe}"), 25, 120, (BUILD, ONE_B))
    yield Check("1b/tuned", "Llama-3.2-1B trains with tuned products.",
                checks.one_b("--tune-products", title="1B bf16, tuned products"), 40, 150, (BUILD, ONE_B))
    yield Check("1b/trace", "--trace shows the streams of a step (trace.json.gz, in the tar).", checks.trace, 20, 90,
                (BUILD, ONE_B))
    yield Check("pytorch/8b_bf16", "6 layers of 8B in bf16 are at least as fast as in PyTorch.",
                checks.against_pytorch("8B in 6 layers, bf16", 1.0, *PYTORCH_8B), 260, 440, (BUILD, ONE_B), rate=True)
    yield Check("pytorch/8b_fp8", "6 layers of 8B in FP8 reach at least 0.85 of PyTorch's rate.",
                checks.against_pytorch("8B in 6 layers, FP8", 0.85, *PYTORCH_8B, "--fp8"), 260, 440, (BUILD, ONE_B, FP8),
                rate=True)
    yield Check("memory/host_copies", "Copies between GPU and host have the rate that the planner assumes.", checks.host_copies,
                10, 60, (BUILD,))
    yield Check("memory/policies", "Recomputing and offloading cost little; the driver takes what the plan says.",
                checks.memory_policies, 250, 400, (BUILD, ONE_B, FP8))
    yield Check("ladder/1b", "Plain, fast and FP8, each against the first: rate, loss, traffic.", checks.ladder, 250, 440,
                (BUILD, ONE_B, FP8))
    for name in KERNELS:
        yield Check(f"bench/{name}", "The kernels against the copy and the product that this GPU reaches.",
                    checks.kernel_bench(name), 12, 200, (BUILD, f"{part_of(name)}/{name}"))


CHECKS = [*numbers(), *first_speed(), *peers(), *show(False), *same_bits(), *show(True), *the_rest()]
