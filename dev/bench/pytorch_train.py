"""Trains a Llama with plain PyTorch: the peer of the trainer's figures, on a CPU or a GPU.

    python dev/bench/pytorch_train.py --config config.json --text FILE --steps 200 --batch 8 --seq-len 256
    python dev/bench/pytorch_train.py --config config.json --device cuda --dtype bf16 --batch 4 --accumulate 8
        --seq-len 2048 --compile
    python dev/bench/pytorch_train.py --config config.json --weights DIR --batches order.safetensors --train-data FILE
        --val-data FILE --val-every 500 --log losses.jsonl

The model is Hugging Face's, or torchtitan's by --code torchtitan (pip install torchtitan==0.2.2), which is compiled
block by block, as torchtitan does. AdamW fused, gradients clipped, weights and their updates in fp32; with --dtype bf16
everything but the loss is computed with a bf16 copy of the weights, as by FSDP's mixed precision, and gradients are
summed in fp32. --attention names Hugging Face's backend of scaled_dot_product_attention, and is an error where that
cannot run (default: PyTorch's choice; fastest: times flash and cuDNN on this shape first). --fp8: the blocks' products
in FP8 with a scale for each tensor, e4m3 forward and e5m2 output gradients, as torchtitan's tensorwise recipe: by
torchao where it is installed, else by torch._scaled_mm. Trains on the bytes of a text, whose last tenth is held out, or
on random tokens; --evaluate measures the held-out loss at the end. Warm-up of a tenth of the steps, then a cosine to a
tenth of the rate. Prints the rate in tokens a second of all but the first steps.

--weights begins with the weights of model.safetensors there. --batches trains on the sequences and at the learning
rates of that file, which dev/bench/batch_order writes, from shards of 2-byte tokens or a text's bytes; steps, batch and
length are its, too. --log gets a line {"step", "loss", "grad_norm"} for each step, where the loss is the mean over the
micro-batches, and {"step", "val_loss"} for each validation.
"""

import argparse
import contextlib
import json
import math
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import AttentionInterface, LlamaConfig, LlamaForCausalLM

from pytorch_batches import IGNORED, GivenBatches, RandomBatches

Batches = GivenBatches | RandomBatches
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


def to_fp8(blocks: nn.Module) -> str:
    """The blocks' linear layers; the head and the embedding stay. Returns by what."""
    try:
        from torchao import __version__
        from torchao.float8 import convert_to_float8_training

        convert_to_float8_training(blocks)
        return f"torchao {__version__}"
    except ImportError:
        for module in blocks.modules():
            if type(module) is nn.Linear:
                module.__class__ = Fp8Linear
        return "torch._scaled_mm"


def causal_attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, _mask: None, **more) -> tuple[Tensor, None]:
    """Without a mask, whatever the version of transformers would build: the fast backends take none."""
    grouped = k.shape[1] != q.shape[1]
    out = scaled_dot_product_attention(q, k, v, is_causal=True, scale=more.get("scaling"), enable_gqa=grouped)
    return out.transpose(1, 2).contiguous(), None


def mean_loss(model: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    """Mean loss in nats of the labels, (B, T) as the inputs; of those that are IGNORED there is none."""
    logits = model(input_ids=inputs, use_cache=False).logits if isinstance(model, LlamaForCausalLM) else model(inputs)
    return cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), ignore_index=IGNORED)


@torch.no_grad()
def held_out_loss(model: nn.Module, batches: Batches) -> float:
    total = count = 0
    for inputs, labels in batches.held_out():
        labelled = int((labels != IGNORED).sum())
        total += mean_loss(model, inputs, labels).item() * labelled
        count += labelled
    return total / count


def fastest_attention(config: LlamaConfig, batch: int, seq_len: int) -> str:
    """Returns the faster of flash and cuDNN, each timed alone on random numbers of the run's shape, both ways."""
    size = config.hidden_size // config.num_attention_heads
    q, k, v, dout = (torch.randn(batch, heads, seq_len, size, dtype=torch.bfloat16, device="cuda", requires_grad=True)
                     for heads in (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads,
                                   config.num_attention_heads))

    def seconds(backend: SDPBackend) -> float:
        torch.cuda.synchronize()
        started = time.perf_counter()
        with sdpa_kernel(backend):
            for _ in range(20):
                out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=k.shape[1] != q.shape[1])
                out.backward(dout.detach())
        torch.cuda.synchronize()
        return time.perf_counter() - started

    times, failures = {}, []
    for name in ("flash", "cudnn"):
        try:
            times[name] = min(seconds(BACKENDS[name]) for _ in range(3))
        except RuntimeError as error:
            failures.append(f"attention: {name} does not run here: {(str(error).splitlines() or ['?'])[0]}")
            print(failures[-1])
    if not times:
        raise SystemExit("--attention fastest: neither flash nor cudnn runs here\n" + "\n".join(failures))
    print("attention: " + ", ".join(f"{name} {50 * total:.3f} ms" for name, total in times.items()))
    return min(times, key=times.get)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Trains a Llama with plain PyTorch, and times it.")
    parser.add_argument("--config", type=Path, required=True, help="Hugging Face config.json; weights are random")
    parser.add_argument("--layers", type=int, help="shorten or lengthen the model")
    parser.add_argument("--weights", type=Path, metavar="DIR", help="begin with the weights of its model.safetensors")
    parser.add_argument("--text", help="bytes to train on (none: random tokens)")
    parser.add_argument("--batches", type=Path, metavar="FILE",
                        help="train on the sequences that dev/bench/batch_order wrote")
    parser.add_argument("--train-data", metavar="FILES", help="their data: shards, or a text")
    parser.add_argument("--val-data", metavar="FILES", help="held-out data (none: the last tenth of a text)")
    parser.add_argument("--val-every", type=int, default=0, metavar="N", help="steps between validations (0: none)")
    parser.add_argument("--log", type=Path, metavar="FILE", help="write losses there, as JSON lines")
    parser.add_argument("--evaluate", action="store_true", help="measure the loss of all held-out bytes")
    parser.add_argument("--steps", type=int, default=200, help="with --batches at most its steps")
    parser.add_argument("--batch", type=int, help="sequences of a micro-batch (8)")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches of a step")
    parser.add_argument("--seq-len", type=int, help="tokens of a sequence (256)")
    parser.add_argument("--lr", type=float, help="the largest learning rate (3e-3)")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--code", choices=("transformers", "torchtitan"), default="transformers", help="whose model")
    parser.add_argument("--fp8", action="store_true", help="the blocks' products in FP8")
    parser.add_argument("--attention", choices=(*sorted(BACKENDS), "fastest"), help="backend of attention")
    parser.add_argument("--compile", action="store_true", help="torch.compile")
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    args = parser.parse_args()
    if args.steps <= WARM_UP_STEPS:
        parser.error(f"--steps {args.steps}: the first {WARM_UP_STEPS} are not timed; take more")
    if args.evaluate and not (args.text or args.batches):
        parser.error("--evaluate: random tokens have no held-out part")
    if args.fp8 and args.dtype != "bf16":
        parser.error("--fp8: it is for --dtype bf16")
    if args.accumulate < 1 or (args.accumulate > 1 and args.batches):
        parser.error(f"--accumulate {args.accumulate}: expected at least 1, and with --batches no more")
    if args.code == "torchtitan" and (args.attention or args.weights):
        parser.error("--attention, --weights: they are for Hugging Face's model")
    if bool(args.batches) != bool(args.train_data):
        parser.error("--batches and --train-data go together")
    if args.val_data and not args.batches:
        parser.error("--val-data: it is for --batches; a text's last tenth is held out")
    for name, default in (("text", None), ("batch", 8), ("seq_len", 256), ("lr", 3e-3)):
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif args.batches:
            parser.error(f"--{name.replace('_', '-')}: --batches has its own")
    if args.attention == "fastest" and (args.device, args.dtype) != ("cuda", "bf16"):
        parser.error("--attention fastest: it is for --device cuda --dtype bf16")
    return args


class Weights:
    """The optimizer updates these: the model's parameters, or their fp32 masters if it computes in another type."""

    def __init__(self, model: nn.Module, dtype: torch.dtype) -> None:
        self.used = list(model.parameters())
        self.separate = dtype != torch.float32
        self.masters = [nn.Parameter(p.detach().clone()) for p in self.used] if self.separate else self.used
        for p in self.used:  # but not RoPE's frequencies
            p.data = p.data.to(dtype)

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


def optimizer_of(weights: Weights) -> torch.optim.AdamW:
    matrices = [p for p in weights.masters if p.dim() == 2]
    vectors = [p for p in weights.masters if p.dim() != 2]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, betas=(0.9, 0.95), fused=True)


def config_of(args: argparse.Namespace) -> LlamaConfig:
    config = LlamaConfig.from_json_file(args.config)
    config.max_position_embeddings = max(config.max_position_embeddings, args.seq_len)
    if args.layers:
        config.num_hidden_layers = args.layers
    return config


def hugging_faces(args: argparse.Namespace, config: LlamaConfig) -> nn.Module:
    """With --weights or random ones."""
    AttentionInterface.register("causal", causal_attention)
    config._attn_implementation = "causal"
    with torch.device(args.device):
        model = LlamaForCausalLM(config)
    if args.weights:
        found = load_file(args.weights / "model.safetensors", device=args.device)
        model.load_state_dict(found, strict=not config.tie_word_embeddings)
    return model


def torchtitans(args: argparse.Namespace, config: LlamaConfig) -> nn.Module:
    """torchtitan 0.2's Llama of this shape; a tied head is tied here, since that version has none."""
    from torchtitan.models.llama3 import Transformer, TransformerModelArgs

    width = config.intermediate_size  # torchtitan rounds 8/3 of the hidden size up to a multiple
    if 8 * config.hidden_size // 3 > width:
        raise SystemExit(f"--code torchtitan: its MLP is at least 8/3 of the hidden size wide, this model's is {width}")
    rope = getattr(config, "rope_parameters", None) or {}
    shape = TransformerModelArgs(
        dim=config.hidden_size, n_layers=config.num_hidden_layers, n_heads=config.num_attention_heads,
        n_kv_heads=config.num_key_value_heads, vocab_size=config.vocab_size, multiple_of=width,
        norm_eps=config.rms_norm_eps,
        rope_theta=rope.get("rope_theta", 1e4), max_seq_len=args.seq_len)
    with torch.device(args.device), torch.no_grad():
        model = Transformer(shape)
        model.init_weights()
    if config.tie_word_embeddings:
        model.output.weight = model.tok_embeddings.weight
    return model


def batches_of(args: argparse.Namespace, vocabulary: int) -> Batches:
    if args.batches:
        batches = GivenBatches(args.batches, args.train_data, args.val_data, args.device)
        args.batch, args.seq_len = batches.batch, batches.seq_len
        if args.steps > batches.steps:
            raise SystemExit(f"--steps {args.steps}: {args.batches} has {batches.steps}")
        return batches
    return RandomBatches(args.text, vocabulary, args.steps, args.batch, args.seq_len, args.lr, args.device)


class Log:
    """--log's lines, and the console's. The losses wait on the device until LOG_EVERY steps are done."""

    def __init__(self, path: Path | None, steps: int) -> None:
        self.file, self.steps, self.waiting = open(path, "w") if path else None, steps, []

    def line(self, fields: dict) -> None:
        if self.file:
            print(json.dumps(fields), file=self.file, flush=True)

    def add(self, step: int, loss: Tensor, norm: Tensor) -> None:
        self.waiting.append((step, loss, norm))
        if step % LOG_EVERY == 0 or step == self.steps:
            for number, *values in self.waiting:
                last_loss, last_norm = (value.item() for value in values)
                self.line({"step": number, "loss": last_loss, "grad_norm": last_norm})
            self.waiting.clear()
            print(f"step {step}/{self.steps} | loss {last_loss:.4f} | norm {last_norm:.2f}", flush=True)


def train(args: argparse.Namespace, model: nn.Module, batches: Batches) -> float:
    """The seconds of all but the first steps, without validations."""
    weights = Weights(model, torch.bfloat16 if args.dtype == "bf16" else torch.float32)
    optimizer = optimizer_of(weights)
    loss_of = torch.compile(mean_loss) if args.compile and args.code == "transformers" else mean_loss
    log = Log(args.log, args.steps)

    def validate(step: int) -> None:
        loss = held_out_loss(model, batches)
        log.line({"step": step, "val_loss": loss})
        print(f"step {step}/{args.steps} | held-out loss {loss:.4f}", flush=True)

    if args.val_every:
        validate(0)
    started = time.perf_counter()
    for step in range(args.steps):
        if step == WARM_UP_STEPS:
            loss.item()  # waits for the device
            started = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = batches.rates[step]
        loss = torch.zeros((), device=args.device)  # the mean over the micro-batches
        for k in range(args.accumulate):
            part = loss_of(model, *batches.of_step(step)) / args.accumulate
            part.backward()
            loss += part.detach()
            weights.take_gradients(first=k == 0)
        norm = torch.nn.utils.clip_grad_norm_(weights.masters, 1.0)
        optimizer.step()
        weights.updated()
        log.add(step + 1, loss, norm)
        if args.val_every and ((step + 1) % args.val_every == 0 or step + 1 == args.steps):
            loss.item()
            paused = time.perf_counter()
            validate(step + 1)
            started += time.perf_counter() - paused
    loss.item()
    return time.perf_counter() - started


def main() -> None:
    args = arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    titan = args.code == "torchtitan"
    config = config_of(args)
    model = (torchtitans if titan else hugging_faces)(args, config)
    batches = batches_of(args, config.vocab_size)
    if args.attention == "fastest":
        args.attention = fastest_attention(config, args.batch, args.seq_len)
    blocks = model.layers if titan else model.model.layers
    products = f", FP8 products by {to_fp8(blocks)}" if args.fp8 else ""
    for block in blocks.values() if titan and args.compile else ():
        block.compile(fullgraph=True)
    count = sum(p.numel() for p in model.parameters())
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"{args.threads} threads"
    print(f"pytorch {torch.__version__}: model of {args.code}, {count / 1e6:.2f} M parameters, {args.dtype}{products}, "
          f"attention {args.attention or 'of its choice'}{', compiled' if args.compile else ''}, {where}")
    with sdpa_kernel(BACKENDS[args.attention]) if args.attention else contextlib.nullcontext():
        seconds = train(args, model, batches)
        if args.evaluate:
            print(f"held-out loss: {held_out_loss(model, batches):.4f} nats a token")
    if args.device == "cuda":
        print(f"pytorch: {torch.cuda.max_memory_allocated() / 2**30:.2f} GiB at most")
    print(f"pytorch: {(args.steps - WARM_UP_STEPS) * args.accumulate * args.batch * args.seq_len / seconds:.0f} tok/s")


if __name__ == "__main__":
    main()
