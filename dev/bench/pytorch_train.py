"""Trains a Llama with plain PyTorch: the peer of the trainer's figures, on a CPU or a GPU.

    python dev/bench/pytorch_train.py --config config.json --text FILE --steps 200 --batch 8 --seq-len 256
    python dev/bench/pytorch_train.py --config config.json --device cuda --dtype bf16 --batch 4 --accumulate 8 --seq-len 2048 --compile

The model is Hugging Face's, or torchtitan's by --code torchtitan (pip install torchtitan==0.2.2), compiled as torchtitan
does, block by block. AdamW fused, gradients clipped, weights and their updates in fp32; with --dtype bf16 everything but the
loss is computed with a bf16 copy of the weights, as by FSDP's mixed precision, and gradients are summed in fp32. --attention
names the backend of scaled_dot_product_attention for Hugging Face's model, and is an error where that cannot run (default:
PyTorch's choice). --fp8: the blocks' products in FP8 with a scale for each tensor, e4m3 forward and e5m2 output gradients, by
torch._scaled_mm or by torchao's float8 (torchtitan's tensorwise recipe). Trains on the bytes of a text, whose last tenth is
held out, or on random tokens; --evaluate measures the held-out loss at the end. Warm-up of a tenth of the steps, then a
cosine to a tenth of the rate. Prints the rate in tokens a second of all but the first steps.
"""

import argparse
import contextlib
import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

LOG_EVERY = 20
WARM_UP_STEPS = 5  # not timed: memory is allocated, kernels are chosen and compiled
BACKENDS = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION, "math": SDPBackend.MATH}


def quantize(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """x times one scale in FP8, and the scale's reciprocal."""
    largest = torch.finfo(dtype).max
    scale = largest / x.abs().amax().float().clamp(min=1e-12)
    return (x.float() * scale).clamp(-largest, largest).to(dtype), scale.reciprocal()


class Fp8Product(torch.autograd.Function):
    """x (N, IC) times weight (OC, IC) transposed; both operands of each product have K along their rows."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor) -> Tensor:
        x8, x_factor = quantize(x, torch.float8_e4m3fn)
        w8, w_factor = quantize(weight, torch.float8_e4m3fn)
        ctx.save_for_backward(x8, x_factor, w8, w_factor)
        return torch._scaled_mm(x8, w8.t(), scale_a=x_factor, scale_b=w_factor, out_dtype=x.dtype, use_fast_accum=True)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x8, x_factor, w8, w_factor = ctx.saved_tensors
        g8, g_factor = quantize(gradient.contiguous(), torch.float8_e5m2)
        dx = torch._scaled_mm(g8, w8.t().contiguous().t(), scale_a=g_factor, scale_b=w_factor, out_dtype=gradient.dtype)
        dweight = torch._scaled_mm(g8.t().contiguous(), x8.t().contiguous().t(), scale_a=g_factor, scale_b=x_factor,
                                   out_dtype=gradient.dtype)
        return dx, dweight


class Fp8Linear(nn.Linear):
    """A linear layer of bf16 without bias, in FP8."""

    def forward(self, x: Tensor) -> Tensor:
        return Fp8Product.apply(x.flatten(0, -2), self.weight).unflatten(0, x.shape[:-1])


def to_fp8(blocks: nn.Module, by: str) -> None:
    """The blocks' linear layers; the head and the embedding stay."""
    if by == "torchao":
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(blocks)
        return
    for module in blocks.modules():
        if type(module) is nn.Linear:
            module.__class__ = Fp8Linear


def causal_attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, _mask: None, **more) -> tuple[Tensor, None]:
    """Without a mask, whatever the version of transformers would build: the fast backends take none."""
    out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=more.get("scaling"), enable_gqa=k.shape[1] != q.shape[1])
    return out.transpose(1, 2).contiguous(), None


def mean_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean loss in nats of predicting tokens[:, 1:]; tokens is (B, T+1)."""
    inputs = tokens[:, :-1]
    logits = model(input_ids=inputs, use_cache=False).logits if isinstance(model, LlamaForCausalLM) else model(inputs)
    return cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())


@torch.no_grad()
def held_out_loss(model: nn.Module, text: Tensor, batch: int, seq_len: int) -> float:
    """Mean over the windows of seq_len that the text holds, side by side."""
    count = (len(text) - 1) // seq_len
    windows = text[: count * seq_len + 1].unfold(0, seq_len + 1, seq_len)
    total = sum(mean_loss(model, part).item() * len(part) for part in windows.split(batch))
    return total / count


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a Llama with plain PyTorch, and times it.")
    parser.add_argument("--config", type=Path, required=True, help="Hugging Face config.json; weights are random")
    parser.add_argument("--layers", type=int, help="shorten or lengthen the model")
    parser.add_argument("--text", type=Path, help="bytes to train on (none: random tokens)")
    parser.add_argument("--evaluate", action="store_true", help="measure the loss of all held-out bytes")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=8, help="sequences of a micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--seq-len", type=int, default=256)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--code", choices=("transformers", "torchtitan"), default="transformers", help="whose model")
    parser.add_argument("--fp8", choices=("scaled_mm", "torchao"), help="the blocks' products in FP8, and by what")
    parser.add_argument("--attention", choices=sorted(BACKENDS), help="backend of attention")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    args = parser.parse_args()
    if args.steps <= WARM_UP_STEPS:
        parser.error(f"--steps {args.steps}: the first {WARM_UP_STEPS} are not timed; take more")
    if args.evaluate and not args.text:
        parser.error("--evaluate: random tokens have no held-out part")
    if args.accumulate < 1:
        parser.error(f"--accumulate {args.accumulate}: expected at least 1")
    if args.attention and args.code == "torchtitan":
        parser.error("--attention: torchtitan's model chooses by itself")
    if args.fp8 and args.dtype != "bf16":
        parser.error("--fp8: it is for --dtype bf16")
    return args


class Weights:
    """What the optimizer updates: the model's parameters, or their fp32 masters where those are of another type."""

    def __init__(self, model: nn.Module) -> None:
        self.used = list(model.parameters())
        self.separate = self.used[0].dtype != torch.float32
        self.masters = [nn.Parameter(p.detach().float()) for p in self.used] if self.separate else self.used

    def take_gradients(self, first: bool) -> None:
        """After a micro-batch: its gradients are added to the step's, which are fp32."""
        if not self.separate:
            return
        if self.masters[0].grad is None:
            for master in self.masters:
                master.grad = torch.empty_like(master)
        sums = [master.grad for master in self.masters]
        (torch._foreach_copy_ if first else torch._foreach_add_)(sums, [p.grad for p in self.used])
        for p in self.used:
            p.grad = None

    @torch.no_grad()
    def updated(self) -> None:
        if self.separate:
            torch._foreach_copy_(self.used, self.masters)
        else:
            for p in self.used:
                p.grad = None


def optimizer_of(weights: Weights, lr: float) -> torch.optim.AdamW:
    matrices = [p for p in weights.masters if p.dim() == 2]
    vectors = [p for p in weights.masters if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=True)


def hugging_faces(config: LlamaConfig) -> nn.Module:
    AttentionInterface.register("causal", causal_attention)
    config._attn_implementation = "causal"
    return LlamaForCausalLM(config)


def torchtitans(config: LlamaConfig, seq_len: int) -> nn.Module:
    """torchtitan 0.2's Llama of this shape; a tied head is tied here, since that version has none."""
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs

    width = config.intermediate_size  # torchtitan rounds 8/3 of the hidden size up to a multiple
    if 8 * config.hidden_size // 3 > width:
        raise SystemExit(f"--code torchtitan: its MLP is at least 8/3 of the hidden size wide, this model's is {width}")
    rope = getattr(config, "rope_parameters", None) or {}
    model = Transformer(TransformerModelArgs(
        dim=config.hidden_size, n_layers=config.num_hidden_layers, n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads, vocab_size=config.vocab_size, multiple_of=width, norm_eps=config.rms_norm_eps,
        rope_theta=rope.get("rope_theta", 1e4), max_seq_len=seq_len))
    with torch.no_grad():
        model.init_weights()
    if config.tie_word_embeddings:
        model.output.weight = model.tok_embeddings.weight
    return model


def config_of(args: argparse.Namespace) -> LlamaConfig:
    config = LlamaConfig.from_json_file(args.config)
    config.max_position_embeddings = max(config.max_position_embeddings, args.seq_len)
    if args.layers:
        config.num_hidden_layers = args.layers
    return config


def model_of(args: argparse.Namespace, config: LlamaConfig, dtype: torch.dtype) -> nn.Module:
    titan = args.code == "torchtitan"
    with torch.device(args.device):
        model = torchtitans(config, args.seq_len) if titan else hugging_faces(config)
    for parameter in model.parameters():  # but not RoPE's frequencies
        parameter.data = parameter.data.to(dtype)
    blocks = model.layers if titan else model.model.layers
    if args.fp8:
        to_fp8(blocks, args.fp8)
    if titan and args.compile:
        for block in blocks.values():
            block.compile(fullgraph=True)
    return model


def data_of(args: argparse.Namespace, vocabulary: int) -> Tensor:
    if not args.text:
        return torch.randint(vocabulary, (1 << 22,), device=args.device)
    return torch.frombuffer(bytearray(args.text.read_bytes()), dtype=torch.uint8).long().to(args.device)


def train(args: argparse.Namespace, model: nn.Module, data: Tensor) -> float:
    """The seconds of all but the first steps."""
    weights = Weights(model)
    optimizer = optimizer_of(weights, args.lr)
    rise = max(args.steps // 10, 1)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / rise, 0.55 + 0.45 * math.cos(math.pi * step / args.steps)))
    loss_of = torch.compile(mean_loss) if args.compile and args.code == "transformers" else mean_loss
    windows = data.unfold(0, args.seq_len + 1, 1)
    started = time.perf_counter()
    for step in range(args.steps):
        if step == WARM_UP_STEPS:
            loss.item()  # waits for the device
            started = time.perf_counter()
        for k in range(args.accumulate):
            loss = loss_of(model, windows[torch.randint(len(windows), (args.batch,), device=args.device)])
            (loss / args.accumulate).backward()
            weights.take_gradients(first=k == 0)
        norm = torch.nn.utils.clip_grad_norm_(weights.masters, 1.0)
        optimizer.step()
        weights.updated()
        schedule.step()
        if (step + 1) % LOG_EVERY == 0 or step + 1 == args.steps:
            print(f"step {step + 1}/{args.steps} | loss {loss.item():.4f} | norm {norm.item():.2f}", flush=True)
    return time.perf_counter() - started


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    dtype = torch.bfloat16 if args.dtype == "bf16" else torch.float32
    config = config_of(args)
    model = model_of(args, config, dtype)
    data = data_of(args, config.vocab_size)
    split = len(data) * 9 // 10
    count = sum(p.numel() for p in model.parameters())
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"{args.threads} threads"
    print(f"pytorch {torch.__version__}: model of {args.code}, {count / 1e6:.2f} M parameters, {args.dtype}"
          f"{', FP8 products by ' + args.fp8 if args.fp8 else ''}, attention {args.attention or 'of its choice'}"
          f"{', compiled' if args.compile else ''}, {where}")
    with sdpa_kernel(BACKENDS[args.attention]) if args.attention else contextlib.nullcontext():
        seconds = train(args, model, data[:split])
        if args.evaluate:
            loss = held_out_loss(model, data[split:], args.batch, args.seq_len)
            print(f"held-out loss: {loss:.4f} nats/byte")
    if args.device == "cuda":
        print(f"pytorch: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at most")
    print(f"pytorch: {(args.steps - WARM_UP_STEPS) * args.accumulate * args.batch * args.seq_len / seconds:.0f} tok/s")


if __name__ == "__main__":
    main()
