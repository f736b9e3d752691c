"""What other projects published, and the options with which dev/bench/peers measures the same of ours."""

from dataclasses import dataclass

BF16_STATE = ("--master-dtype", "bf16", "--moment-dtype", "bf16")
FP8 = ("--fp8", "tensorwise")
LLMQ = "LLMQ, benchmarks/H100x1.md of 2026-05-25"
TITAN = "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
TITAN_H200 = "torchtitan, benchmarks/llama3-8b_h200_202506_trainy-whitefiber.md"
BRIDGE = "Megatron-Bridge, performance summary, NeMo 25.11"
LLMC = "llm.c, discussion 481, 2024-05-28"
PYTORCH = "dev/bench/pytorch_ratio, in turn, the median of three rounds"
HALF_A_MILLION = 524288
H100_PEAK, A100_PEAK = 989e12, 312e12  # FLOP/s of the data sheet, dense bf16; an H200 has an H100's


@dataclass(frozen=True)
class Peer:
    """A published figure."""

    project: str
    rate: float | None  # tokens/s of one GPU
    on: str  # the GPUs: "8 H100"
    how: str  # what else the figure depends on
    source: str
    peak: float = H100_PEAK


@dataclass(frozen=True)
class Row:
    """One measurement of ours, and what others published of the same model and protocol."""

    name: str  # project/model-precision
    title: str  # the model and the precision
    T: int  # tokens of a sequence
    tokens: int  # of a step, on one GPU
    peers: tuple
    options: tuple  # ours, of bench/train; of pytorch_ratio where in_turn
    head_size: int
    family: str = "llama"
    in_turn: bool = False  # the peer is PyTorch on this machine
    layers: int = 0  # the peers', where ours has as many as fit into one GPU
    steps: int = 3  # that are timed
    expected: int = 25  # seconds on an H100


def llmq(size, precision, rate, how, micro_batch, steps, expected, *more):
    options = ("--model", f"qwen2.5-{size}", "--micro-batch", micro_batch, *BF16_STATE, *(FP8 if precision == "FP8" else ()), *more)
    return Row(f"llmq/{size}-{precision.lower()}", f"Qwen2.5-{size.upper()}, {precision}", 1024, HALF_A_MILLION,
               (Peer("LLMQ", rate, "1 H100", how, LLMQ),), options, 64 if size == "0.5b" else 128, "qwen2", steps=steps,
               expected=expected)


def layered(precision, *peers):
    """8B at 8192 tokens, of which one GPU holds some layers with weights, moments and gradients in fp32."""
    options = ("--model", "llama3-8b", "--fit", "--micro-batch", 1, *(FP8 if precision == "FP8" else ()))
    return Row(f"8b/{precision.lower()}", f"Llama-3-8B, {precision}", 8192, 16 * 8192, peers, options, 128, layers=32, expected=40)


def in_turn(precision):
    options = ("--model", "dev/bench/llama3.2-1b.json", "--batch", 2, "--accumulate", 8, *(("--fp8",) if precision == "FP8" else ()))
    peer = Peer("PyTorch", None, "the same GPU", "8 micro-batches of 2 sequences, compiled", PYTORCH)
    return Row(f"pytorch/1b-{precision.lower()}", f"Llama-3.2-1B, {precision}", 4096, 16 * 4096, (peer,), options, 64, in_turn=True, steps=16,
               expected=250)


ROWS = (
    llmq("0.5b", "bf16", 149.5e3, "32 sequences a micro-batch", 32, 3, 30),
    llmq("0.5b", "FP8", 164e3, "32 sequences a micro-batch", 32, 3, 30),
    llmq("1.5b", "bf16", 58.9e3, "32 sequences a micro-batch, head in 4 chunks", 16, 2, 40),
    llmq("1.5b", "FP8", 73.0e3, "32 sequences a micro-batch", 32, 2, 35),
    llmq("3b", "bf16", 30.9e3, "16 sequences a micro-batch", 8, 1, 40),
    llmq("3b", "FP8", 40.4e3, "16 sequences a micro-batch", 8, 1, 35),
    llmq("7b", "bf16", 13.8e3, "4 sequences a micro-batch, head and attention's backward in 2 chunks", 4, 1, 80, "--offload-optimizer"),
    llmq("7b", "FP8", 19.1e3, "16 sequences a micro-batch, head and attention's backward in 4 chunks, recomputes the MLP and norms, "
         "offloads the residual stream", 4, 1, 60, "--offload-optimizer"),
    layered("bf16", Peer("torchtitan", 6667, "8 H100 of 500 W", "FSDP, compiled, 2 sequences a step, selective recompute", TITAN)),
    layered("FP8", Peer("torchtitan", 8532, "8 H100 of 500 W", "FSDP, compiled, 2 sequences a step, selective recompute", TITAN),
            Peer("torchtitan", 10938, "32 H200", "FSDP, compiled, 2 sequences a step, FP8 all-gather, selective recompute", TITAN_H200),
            Peer("Megatron-Bridge", 14451, "8 H100", "current scaling, sharded over 8, 16 micro-batches of a sequence", BRIDGE)),
    Row("llm.c/124m-bf16", "Llama of 124M (theirs: GPT-2 of 124M), bf16", 1024, HALF_A_MILLION,
        (Peer("llm.c", 10e9 / 5400 / 8, "8 A100", "10 billion tokens in 90 minutes", LLMC, A100_PEAK),),
        ("--model", "dev/bench/llama-124m.json", "--micro-batch", 64), 64, steps=4, expected=30),
    in_turn("bf16"),
    in_turn("FP8"),
)
