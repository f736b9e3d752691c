"""A right program other than PyTorch, and wrong ones, for test_limits.py: emulated by changing Hugging Face's model.

The right one has fused kernels: norm, SwiGLU, and the biases and norms of q and k with RoPE round once; scores, softmax
and row sums are in fp32.  A wrong one makes one mistake of FAULTS on top of that.
"""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MethodType
from unittest import mock

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedConfig
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

import make_dump
from make_dump import AdamW, Shape, Tensors


class SumInBf16(torch.autograd.Function):
    """Sum over the last axis, one entry after the other, rounded to bf16 each time."""

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        ctx.shape = x.shape
        total = torch.zeros_like(x[..., :1])
        for i in range(x.shape[-1]):
            total = total + x[..., i : i + 1]
        return total

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        return gradient.expand(ctx.shape)


def fused_norm(self: nn.Module, x: Tensor) -> Tensor:
    wide = x.float()
    rstd = torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return (self.weight.float() * wide * rstd).to(x.dtype)


def norm_with_bf16_sum(self: nn.Module, x: Tensor) -> Tensor:
    x = x.to(torch.bfloat16)
    return self.weight * (x * torch.rsqrt(SumInBf16.apply(x * x) / x.shape[-1] + self.variance_epsilon))


def fused_mlp(self: nn.Module, x: Tensor) -> Tensor:
    return self.down_proj((nn.functional.silu(self.gate_proj(x).float()) * self.up_proj(x).float()).to(x.dtype))


def fp32_tables(self: nn.Module, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
    return type(self).forward(self, x.float(), position_ids)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x (B, heads, T, HD), cos and sin (B or 1, T, HD); in fp32."""
    first, second = x.float().chunk(2, -1)
    return x.float() * cos[:, None] + torch.cat((-second, first), -1) * sin[:, None]


def rotate_interleaved(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    order = torch.arange(x.shape[-1]).view(-1, 2).t().flatten()  # entries 0, 2, 4, … then 1, 3, 5, …
    return rotate(x[..., order], cos, sin)[..., order.argsort()]


def softmax_product(scores: Tensor, v: Tensor) -> Tensor:
    p = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    return (p.to(v.dtype).float() @ v.float()) / p.sum(-1, keepdim=True)


def softmax_product_in_bf16(scores: Tensor, v: Tensor) -> Tensor:
    scores = scores.to(v.dtype)
    p = torch.exp(scores - scores.amax(-1, keepdim=True).detach())
    return (p / SumInBf16.apply(p)) @ v


def wide_projection(self: nn.Linear, x: Tensor) -> Tensor:
    """The product is rounded, its sum with the bias is not."""
    y = nn.functional.linear(x, self.weight).float()
    return y if self.bias is None else y + self.bias.float()


def projection(self: nn.Linear, x: Tensor) -> Tensor:
    return wide_projection(self, x).to(x.dtype)


class DecayOnVectors(AdamW):
    def decays(self, w: Tensor) -> bool:
        return True


class Bf16Weights(AdamW):
    def update(self, grads: Tensors) -> Tensor:
        norm = super().update(grads)
        for w in self.weights.values():
            w.copy_(w.bfloat16())
        return norm


class PlainMomentum(AdamW):
    nesterov = False


class FusedQkv(AdamW):
    """Muon takes q, k and v, stacked, as one matrix."""

    def __init__(self, weights: Tensors, *args: object) -> None:
        super().__init__(fused_qkv(weights), *args)
        self.fused = self.weights
        self.weights = {}
        for name, w in self.fused.items():
            parts = [name.replace("qkv", f"{x}_proj") for x in "qkv"] if name.endswith("qkv.weight") else [name]
            self.weights |= zip(parts, w.split([len(weights[part]) for part in parts]))  # views

    def update(self, grads: Tensors) -> Tensor:
        separate, self.weights = self.weights, self.fused
        norm = super().update(fused_qkv(grads))
        self.weights = separate
        return norm


def fused_qkv(tensors: Tensors) -> Tensors:
    result: Tensors = {}
    for name, t in tensors.items():
        if name.endswith("q_proj.weight"):
            t = torch.cat([tensors[name.replace("q_proj", f"{x}_proj")] for x in "qkv"])
            result[name.replace("q_proj", "qkv")] = t
        elif not name.endswith(("k_proj.weight", "v_proj.weight")):
            result[name] = t
    return result


def other_scale(p: "Program") -> None:
    scales = ["match-rms", "original"]
    p.recipe["muon"]["scale"] = scales[p.recipe["muon"]["scale"] == scales[0]]


@dataclass
class Program:
    """What a program computes with.  A fault changes some of it."""

    config: PreTrainedConfig
    batch: Tensors
    recipe: dict
    norm: Callable = fused_norm
    rotate_q: Callable = rotate
    rotate_k: Callable = rotate
    softmax_product: Callable = softmax_product
    unseen: Callable[[Tensor], Tensor] = lambda unseen: unseen  # changes a mask (B or 1, 1, T, T) of bool
    score_factor: float = 1.0
    rotated: Callable = lambda module, q, k: (q, k)  # changes what RoPE gave
    repeat: Callable[[Tensor, int], Tensor] = lambda k, groups: k.repeat_interleave(groups, 1)
    optimizer: type[AdamW] = AdamW
    edits: list[Callable[[nn.Module], None]] = field(default_factory=list)  # of Hugging Face's model

    def attention(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float,
                  **_: object) -> tuple[Tensor, None]:
        q, k = self.rotated(module, q, k)
        k, v = (self.repeat(t, module.num_key_value_groups) for t in (k, v))
        scores = (q.float() @ k.float().mT) * (scaling * self.score_factor)
        T = scores.shape[-1]
        unseen = torch.ones(1, 1, T, T, dtype=torch.bool).triu(1) if mask is None else mask < 0
        scores = scores.masked_fill(self.unseen(unseen), -math.inf)
        return self.softmax_product(scores, v).to(v.dtype).transpose(1, 2).contiguous(), None

    def edit(self, model: nn.Module) -> None:
        forwards = {"RMSNorm": self.norm, "MLP": fused_mlp, "RotaryEmbedding": fp32_tables}
        for module in model.modules():
            for suffix, forward in forwards.items():
                if type(module).__name__.endswith(suffix):
                    module.forward = MethodType(forward, module)
        for layer in model.model.layers:
            for letter, forward in zip("qkv", (wide_projection, wide_projection, projection)):
                linear = getattr(layer.self_attn, f"{letter}_proj")
                linear.forward = MethodType(forward, linear)
        for change in self.edits:
            change(model)

    def train(self, weights: Tensors, dtype: torch.dtype) -> Tensors:
        def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
            return self.rotate_q(q, cos, sin).to(dtype), self.rotate_k(k, cos, sin).to(dtype)

        modeling = sys.modules[AutoModelForCausalLM._model_mapping[type(self.config)].__module__]
        ALL_ATTENTION_FUNCTIONS["emulated"] = self.attention
        with (mock.patch.object(modeling, "apply_rotary_pos_emb", rope),
              mock.patch.object(make_dump, "AdamW", self.optimizer)):
            return make_dump.train(self.config, weights, self.batch, self.recipe, dtype, "emulated", self.edit)


def program(fault: str, config: PreTrainedConfig, batch: Tensors, recipe: dict) -> Program:
    """With a mistake of FAULTS, or the right one: "right"."""
    result = Program(copy.deepcopy(config), dict(batch), copy.deepcopy(recipe))
    if fault != "right":
        FAULTS[fault].make(result)
    return result


# ---------------------------------------------------------------------------------------------- wrong programs


@dataclass(frozen=True)
class Fault:
    make: Callable[[Program], object]
    concerns: Callable[[Shape], bool] = lambda shape: True  # whether the mistake changes what such a model computes
    bf16_only: bool = False  # the mistake is one of rounding


def rope(**changes: Callable[[float], float]) -> Callable[[Program], None]:
    def make(p: Program) -> None:
        old = p.config.rope_parameters
        p.config.rope_parameters = old | {key: change(old.get(key)) for key, change in changes.items()}

    return make


def has_rope(*types: str) -> Callable[[Shape], bool]:
    return lambda shape: (shape.rope_scaling or {}).get("rope_type") in types


def scale_by_width(p: Program) -> None:
    c = p.config
    p.score_factor = math.sqrt(make_dump.head_dim(c) * c.num_attention_heads / c.hidden_size)


def shift_labels(p: Program) -> None:
    """The token to predict is the input itself."""
    labels = p.batch["labels"]
    p.batch["labels"] = torch.where(labels < 0, labels, p.batch["input_ids"])


def one_position_late(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return rotate(x, cos.roll(1, 1), sin.roll(1, 1))


def angles_in_bf16(model: nn.Module) -> None:
    def forward(self: nn.Module, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = (position_ids[..., None].bfloat16() * self.inv_freq.bfloat16()).float()
        return torch.cat((angles, angles), -1).cos(), torch.cat((angles, angles), -1).sin()

    model.model.rotary_emb.forward = MethodType(forward, model.model.rotary_emb)


def without_lookup_gradient(model: nn.Module) -> None:
    """A tied embedding gets the head's gradient only."""
    embedding = model.model.embed_tokens
    embedding.forward = lambda ids: nn.functional.embedding(ids, embedding.weight.detach())


def mean_over_all(p: Program) -> None:
    """Each gradient is divided by the number of all labels, ignored ones included."""
    counted = (p.batch["labels"][0] >= 0).float().mean()
    p.edits.append(lambda model: [w.register_hook(lambda gradient: gradient * counted) for w in model.parameters()])


def seen_next(unseen: Tensor) -> Tensor:
    return unseen & ~torch.ones(unseen.shape[-1], dtype=torch.bool)[:-1].diag(1)


def unseen_self(unseen: Tensor) -> Tensor:
    """A token that sees no other still sees itself."""
    others = unseen | torch.ones(unseen.shape[-1], dtype=torch.bool).diag()
    return torch.where(others.all(-1, keepdim=True), unseen, others)


def modules(*suffixes: str) -> Callable[[nn.Module], list[nn.Module]]:
    return lambda model: [module for name, module in model.named_modules() if name.endswith(suffixes)]


qk_norms, biased = modules("q_norm", "k_norm"), modules("q_proj", "k_proj", "v_proj")


def without_qk_norms(model: nn.Module) -> None:
    for norm in qk_norms(model):
        norm.forward = lambda x, w=norm.weight: x + 0 * w.sum()


def normed_heads(norm: nn.Module, x: Tensor) -> Tensor:
    """Of x (B, heads, T, HD): over HD, or over all heads."""
    if norm.weight.numel() == x.shape[-1]:
        return fused_norm(norm, x)
    return fused_norm(norm, x.transpose(1, 2).flatten(2)).unflatten(2, (-1, x.shape[-1])).transpose(1, 2)


def norm_after_rope(p: Program) -> None:
    p.edits.append(without_qk_norms)
    p.rotated = lambda module, q, k: (normed_heads(module.q_norm, q), normed_heads(module.k_norm, k))


def norm_over_other_width(p: Program) -> None:
    """Over each head instead of all, or over all instead of each."""
    HD = make_dump.head_dim(p.config)

    def forward(self: nn.Module, x: Tensor) -> Tensor:
        of_head = self.weight.numel() == HD
        x, axes = (x, (-2, -1)) if of_head else (x.unflatten(-1, (-1, HD)), (-1,))
        wide = x.float()
        normed = wide * torch.rsqrt(wide.pow(2).mean(axes, keepdim=True) + self.variance_epsilon)
        return (normed if of_head else normed.flatten(-2)) * self.weight.float()

    def edit(model: nn.Module) -> None:
        for norm in qk_norms(model):
            norm.forward = MethodType(forward, norm)

    p.edits.append(edit)


def without_biases(model: nn.Module) -> None:
    for linear in biased(model):
        linear.forward = lambda x, linear=linear: nn.functional.linear(x, linear.weight) + 0 * linear.bias.sum()


def bias_after_rope(p: Program) -> None:
    def rotated(module: nn.Module, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return tuple(x + linear.bias.unflatten(0, (-1, 1, x.shape[-1])) for x, linear in
                     ((q, module.q_proj), (k, module.k_proj)))

    def edit(model: nn.Module) -> None:
        for linear in modules("q_proj", "k_proj")(model):
            linear.forward = lambda x, w=linear.weight: nn.functional.linear(x, w)

    p.edits.append(edit)
    p.rotated = rotated


def norms_before(model: nn.Module) -> None:
    """Norms before attention and MLP, where they belong behind."""
    def put_before(part: nn.Module, norm: nn.Module) -> None:
        part.register_forward_pre_hook(lambda _, x, names: (tuple(fused_norm(norm, t) for t in x), names | {
            name: fused_norm(norm, t) for name, t in names.items() if name == "hidden_states"}), with_kwargs=True)
        norm.forward = lambda x: x

    for layer in model.model.layers:
        put_before(layer.self_attn, layer.post_attention_layernorm)
        put_before(layer.mlp, layer.post_feedforward_layernorm)


def with_pad_gradient(model: nn.Module) -> None:
    model.model.embed_tokens.padding_idx = None


def window_plus(keys: int) -> Callable[[Program], None]:
    return lambda p: setattr(p.config, "sliding_window", p.config.sliding_window + keys)


def slide_others(p: Program) -> None:
    names = ["full_attention", "sliding_attention"]
    p.config.layer_types = [names[kind == names[0]] for kind in p.config.layer_types]


def shorter_than_T(shape: Shape) -> bool:
    return 0 < shape.keys.get("sliding_window", 0) < shape.T


FAULTS: dict[str, Fault] = {
    "softmax in bf16": Fault(lambda p: setattr(p, "softmax_product", softmax_product_in_bf16), bf16_only=True),
    "norm's sum in bf16": Fault(lambda p: setattr(p, "norm", norm_with_bf16_sum), bf16_only=True),
    "angles of RoPE in bf16": Fault(lambda p: p.edits.append(angles_in_bf16), bf16_only=True),
    "master weights in bf16": Fault(lambda p: setattr(p, "optimizer", Bf16Weights), bf16_only=True),
    "eps of norms x 10": Fault(lambda p: setattr(p.config, "rms_norm_eps", 10 * p.config.rms_norm_eps)),
    "theta x 1.1": Fault(rope(rope_theta=lambda theta: 1.1 * theta)),
    "RoPE of k one position late": Fault(lambda p: setattr(p, "rotate_k", one_position_late)),
    "RoPE of interleaved pairs": Fault(lambda p: [setattr(p, f"rotate_{x}", rotate_interleaved) for x in "qk"]),
    "scaling of RoPE x 1.25": Fault(rope(factor=lambda factor: 1.25 * factor), has_rope("linear", "llama3", "yarn")),
    "a band of llama3 x 1.25": Fault(rope(low_freq_factor=lambda low: 1.25 * low), has_rope("llama3")),
    "original context of yarn x 2": Fault(rope(original_max_position_embeddings=lambda length: 2 * length),
                                          has_rope("yarn")),
    "yarn's gain left out": Fault(rope(attention_factor=lambda gain: 1.0), has_rope("yarn")),
    "scores without 1/sqrt(HD)": Fault(lambda p: setattr(p, "score_factor", math.sqrt(make_dump.head_dim(p.config)))),
    "scores with 1/sqrt(C/NH)": Fault(scale_by_width, lambda s: s.C != s.NH * s.HD),
    "the next token is seen": Fault(lambda p: setattr(p, "unseen", seen_next)),
    "a token does not see itself": Fault(lambda p: setattr(p, "unseen", unseen_self)),
    "key heads in another order": Fault(
        lambda p: setattr(p, "repeat", lambda k, groups: k.repeat(1, groups, 1, 1)),
        lambda s: 1 < s.NKV < s.NH),
    "documents see each other": Fault(lambda p: p.batch.pop("position_ids"), lambda s: s.documents > 0),
    "q/k norm left out": Fault(lambda p: p.edits.append(without_qk_norms), lambda s: s.family in ("qwen3", "olmo2")),
    "q/k norm after RoPE": Fault(norm_after_rope, lambda s: s.family in ("qwen3", "olmo2")),
    "q/k norm over another width": Fault(norm_over_other_width,
                                         lambda s: s.family in ("qwen3", "olmo2") and s.NH > s.NKV),
    "biases left out": Fault(lambda p: p.edits.append(without_biases), lambda s: s.family == "qwen2"),
    "biases of q and k after RoPE": Fault(bias_after_rope, lambda s: s.family == "qwen2"),
    "norms before attention and MLP": Fault(lambda p: p.edits.append(norms_before), lambda s: s.family == "olmo2"),
    "a gradient of the pad token": Fault(lambda p: p.edits.append(with_pad_gradient),
                                         lambda s: s.keys.get("pad_token_id") is not None),
    "a window of one key less": Fault(window_plus(-1), lambda s: "sliding_window" in s.keys),
    "a window of one key more": Fault(window_plus(1), shorter_than_T),
    "no window": Fault(lambda p: setattr(p.config, "sliding_window", None), shorter_than_T),
    "windows in the other layers": Fault(slide_others, lambda s: s.family.startswith("qwen") and shorter_than_T(s)),
    "labels not shifted": Fault(shift_labels),
    "mean over ignored labels, too": Fault(mean_over_all, lambda s: s.ignored > 0 or s.documents > 0 or s.turns > 0),
    "no gradient of a tied lookup": Fault(lambda p: p.edits.append(without_lookup_gradient), lambda s: s.tied),
    "no clipping": Fault(lambda p: p.recipe.update(grad_clip=1e9), lambda s: s.grad_clip < 10),
    "beta1 0.85": Fault(lambda p: p.recipe.update(beta1=0.85)),
    "beta2 0.9": Fault(lambda p: p.recipe.update(beta2=0.9)),
    "AdamW's eps x 3": Fault(lambda p: p.recipe.update(eps=3 * p.recipe["eps"])),
    "no weight decay": Fault(lambda p: p.recipe.update(weight_decay=0.0)),
    "weight decay on norms": Fault(lambda p: setattr(p, "optimizer", DecayOnVectors)),
    "Muon of q, k and v as one matrix": Fault(lambda p: setattr(p, "optimizer", FusedQkv), lambda s: s.muon != ""),
    "Muon with the other scale": Fault(other_scale, lambda s: s.muon != ""),
    "Muon without Nesterov": Fault(lambda p: setattr(p, "optimizer", PlainMomentum), lambda s: s.muon != ""),
    "Muon's momentum 0.9": Fault(lambda p: p.recipe["muon"].update(momentum=0.9), lambda s: s.muon != "")}
