"""Writes parity dumps: small Hugging Face models, what they compute in float64, and PyTorch's own errors.

The truth (`expected.safetensors`) is a float64 run.  `.double()` alone is not one: Hugging Face computes RMSNorm, the
eager softmax and the RoPE tables in fp32 in any model.  So the float64 run has its own norms and its own tables
(inverse frequencies, angles, cosines and sines in float64) and takes sdpa's "math" attention.  test_reference.py proves
it by finite differences.

    python dev/reference/make_dump.py --out dev/reference/dumps          # every shape of the table
    python dev/reference/make_dump.py --out /tmp/dumps --shape gqa7 tied --seed 7
    python dev/reference/make_dump.py --out /tmp/dumps --shape gqa7 --fp8 delayed
"""

import argparse
import copy
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel

from emulation import Emulation
from fp8 import GROUPS, Quantization
from optimizer import AdamW, Tensors


@dataclass(frozen=True)
class Shape:
    C: int
    FF: int
    L: int
    NH: int
    NKV: int
    HD: int
    V: int
    B: int
    T: int
    seed: int = 1
    tied: bool = False
    rope_theta: float = 10000.0
    rope_scaling: dict[str, float | str | bool] | None = None  # its rope_type, and what that takes
    ignored: float = 0.0  # fraction of labels that are -100, scattered; with any, the last sequence is ignored whole
    grad_clip: float = 1.0
    z_loss: float = 0.0  # coefficient of logsumexp(logits)^2, which is added to the loss of each label
    older_config: bool = False  # config.json with the names that transformers 4 wrote
    documents: int = 0  # rows are packed with documents of some such length; 0: a row is one document
    turns: int = 0  # only every other run of about so many tokens is learnt, as the answers of a conversation; 0: all is
    fp8: str = "off"  # Quantization.parse
    muon: str = ""  # the scale of Muon's updates of the blocks' matrices, "match-rms" or "original"; "": AdamW updates all
    family: str = "llama"  # Hugging Face's model_type
    keys: dict[str, object] = field(default_factory=dict)  # of config.json, in addition to those that all shapes have
    omitted: tuple[str, ...] = ()  # keys that Hugging Face writes, but older files of a family do not have


# The original context is short enough that the wavelengths (2 pi theta^(2i/HD)) fall into all three bands, and that T
# passes it.
LLAMA3_ROPE = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 32}
YARN_ROPE = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 4.0, "original_max_position_embeddings": 64}

SHAPES: dict[str, Shape] = {
    "mha": Shape(C=48, FF=40, L=2, NH=3, NKV=3, HD=16, V=64, B=2, T=37),
    "gqa4": Shape(C=32, FF=48, L=2, NH=8, NKV=2, HD=16, V=80, B=2, T=53),
    "gqa7": Shape(C=56, FF=24, L=2, NH=7, NKV=1, HD=16, V=61, B=2, T=41),
    "odd_vocab": Shape(C=32, FF=24, L=3, NH=2, NKV=1, HD=16, V=127, B=3, T=29, grad_clip=100.0),
    "tied": Shape(C=48, FF=48, L=2, NH=3, NKV=1, HD=16, V=96, B=2, T=43, tied=True),
    "scaled_rope": Shape(C=32, FF=48, L=2, NH=2, NKV=1, HD=16, V=72, B=2, T=59, rope_theta=500.0,
                         rope_scaling=LLAMA3_ROPE),
    "older_config": Shape(C=32, FF=48, L=2, NH=2, NKV=2, HD=16, V=69, B=2, T=47, tied=True, rope_theta=500.0,
                          rope_scaling=LLAMA3_ROPE, older_config=True),
    "wide_head": Shape(C=32, FF=56, L=2, NH=4, NKV=2, HD=24, V=75, B=2, T=31),
    "ignored_labels": Shape(C=32, FF=48, L=2, NH=2, NKV=1, HD=16, V=64, B=4, T=37, ignored=0.3),
    "packed": Shape(C=32, FF=48, L=2, NH=4, NKV=2, HD=16, V=64, B=3, T=61, documents=9),
    "packed128": Shape(C=32, FF=24, L=1, NH=2, NKV=1, HD=128, V=35, B=2, T=139, documents=40),
    "conversations": Shape(C=32, FF=48, L=2, NH=4, NKV=1, HD=16, V=64, B=3, T=67, documents=25, turns=7),
    "z_loss": Shape(C=32, FF=48, L=2, NH=4, NKV=2, HD=16, V=89, B=4, T=39, ignored=0.2, z_loss=0.02),
    "head64": Shape(C=32, FF=24, L=1, NH=4, NKV=2, HD=64, V=33, B=2, T=133),
    "head128": Shape(C=32, FF=24, L=1, NH=2, NKV=1, HD=128, V=35, B=2, T=139),
}
SHAPES |= {
    "qwen2": Shape(C=64, FF=24, L=2, NH=4, NKV=2, HD=16, V=61, B=2, T=41, family="qwen2"),
    "qwen2_tied": Shape(C=32, FF=40, L=2, NH=2, NKV=1, HD=16, V=67, B=2, T=45, family="qwen2", tied=True),
    "qwen3": Shape(C=32, FF=40, L=2, NH=4, NKV=2, HD=24, V=59, B=2, T=43, family="qwen3"),
    "qwen3_head128": Shape(C=32, FF=24, L=1, NH=2, NKV=1, HD=128, V=35, B=2, T=141, family="qwen3"),
    "olmo2": Shape(C=48, FF=40, L=2, NH=3, NKV=1, HD=16, V=57, B=2, T=39, family="olmo2",
                   keys={"pad_token_id": None, "eos_token_id": 2}),
    "olmo2_pad": Shape(C=64, FF=24, L=2, NH=4, NKV=2, HD=16, V=53, B=2, T=35, family="olmo2", tied=True,
                       keys={"pad_token_id": 7, "eos_token_id": 2}),
    "window": Shape(C=32, FF=48, L=2, NH=4, NKV=2, HD=16, V=64, B=2, T=61, family="mistral",
                    keys={"sliding_window": 5}),
    "window_equal": Shape(C=32, FF=24, L=2, NH=2, NKV=1, HD=16, V=45, B=2, T=37, family="mistral",
                          keys={"sliding_window": 37}),  # one key less, and only the last query of a row differs
    "window_ministral": Shape(C=32, FF=24, L=3, NH=2, NKV=1, HD=24, V=51, B=2, T=45, family="ministral",
                              keys={"sliding_window": 8, "layer_types": [
                                  "full_attention", "sliding_attention", "full_attention"]}),
    "window_packed": Shape(C=32, FF=40, L=2, NH=2, NKV=2, HD=16, V=64, B=2, T=67, family="mistral", documents=15,
                           keys={"sliding_window": 7}),
    "window_layers": Shape(C=32, FF=24, L=3, NH=2, NKV=1, HD=24, V=51, B=2, T=53, family="qwen3", documents=20,
                           keys={"use_sliding_window": True, "sliding_window": 9, "layer_types": [
                               "sliding_attention", "full_attention", "sliding_attention"]}),
    "window_upper": Shape(C=32, FF=24, L=3, NH=2, NKV=1, HD=16, V=51, B=2, T=47, family="qwen2",
                          keys={"use_sliding_window": True, "sliding_window": 11, "max_window_layers": 1},
                          omitted=("layer_types",)),
    # Tiles of 64 and of 128 keys are not seen at all, in part, and whole.
    "window128": Shape(C=32, FF=24, L=1, NH=2, NKV=1, HD=128, V=35, B=2, T=205, family="mistral",
                       keys={"sliding_window": 70}),
    "linear": Shape(C=32, FF=40, L=2, NH=2, NKV=1, HD=16, V=63, B=2, T=49, rope_theta=500.0,
                    rope_scaling={"rope_type": "linear", "factor": 4.0}),
    "yarn": Shape(C=64, FF=24, L=2, NH=2, NKV=1, HD=32, V=55, B=2, T=77, rope_theta=100.0, family="qwen2",
                  rope_scaling=YARN_ROPE | {"attention_factor": 1.3}),
    "yarn_default": Shape(C=32, FF=24, L=2, NH=2, NKV=1, HD=32, V=49, B=2, T=71, rope_theta=100.0,
                          rope_scaling=YARN_ROPE | {"beta_fast": 8.0, "beta_slow": 2.0}),
    "yarn_mscale": Shape(C=32, FF=24, L=2, NH=2, NKV=1, HD=32, V=49, B=2, T=73, rope_theta=100.0, tied=True,
                         rope_scaling=YARN_ROPE | {"mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False}),
}
# In the first C, FF, 2 FF, V and N are no multiples of 16; in the second a row of most operands has two blocks of 128
# entries, and the weight of gate and up four of 128 x 128, of which three are cut off.
ODD = Shape(C=40, FF=44, L=1, NH=2, NKV=1, HD=24, V=37, B=1, T=37)
WIDE = Shape(C=136, FF=72, L=1, NH=1, NKV=1, HD=24, V=33, B=1, T=37)
SHAPES |= {f"fp8_{recipe}": replace(WIDE if recipe == "blockwise" else ODD, fp8=recipe) for recipe in GROUPS}
SHAPES |= {
    "fp8_qwen2": replace(ODD, C=48, family="qwen2", fp8="rowwise"),
    "fp8_qwen3": replace(ODD, family="qwen3", fp8="tensorwise",
                         keys={"use_sliding_window": True, "sliding_window": 9, "max_window_layers": 0}),
    "fp8_olmo2": replace(ODD, C=48, family="olmo2", fp8="delayed",
                         keys={"pad_token_id": 7, "eos_token_id": 2}),
    "fp8_head": replace(ODD, V=150, B=2, T=53, ignored=0.2, fp8='{"recipe": "tensorwise", "head": "on"}'),
    "fp8_head_tied": replace(ODD, C=48, V=75, tied=True, fp8='{"recipe": "blockwise", "head": "on"}'),
    "fp8_head_backward": replace(ODD, C=48, V=96, fp8='{"recipe": "delayed", "head": "backward"}')}

# Muon with both scales, on tall, wide and square matrices.
SHAPES |= {
    "muon": Shape(C=32, FF=48, L=2, NH=8, NKV=2, HD=16, V=64, B=2, T=41, muon="match-rms"),
    "muon_tied": Shape(C=48, FF=40, L=2, NH=3, NKV=1, HD=16, V=65, B=2, T=37, tied=True, muon="original"),
    "muon_qwen2": Shape(C=64, FF=24, L=1, NH=4, NKV=2, HD=16, V=61, B=2, T=43, family="qwen2", muon="original"),
    "muon_olmo2": Shape(C=48, FF=40, L=2, NH=3, NKV=1, HD=16, V=57, B=2, T=39, family="olmo2", muon="match-rms",
                        keys={"pad_token_id": 7, "eos_token_id": 2}),
    "fp8_muon": replace(ODD, C=48, NH=4, NKV=2, fp8="delayed", muon="match-rms"),
}

RECIPE = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-5, "weight_decay": 0.1, "steps": 12}

# Another rate and decay than AdamW's, so that a mistake of one for the other shows.
MUON = {"learning_rate": 5e-4, "momentum": 0.95, "weight_decay": 0.2}

# test_llama's yardstick are PyTorch's errors with so many sets of weights: with one set, the error of a norm's few
# entries is a matter of luck, because Adam turns an entry whose sign flips into a full step.
SEEDS = 8

FAMILIES_WITHOUT_HEAD_DIM = {"qwen2", "olmo2"}

Errors = dict[str, dict[str, float]]  # by precision and tensor


def model_config(shape: Shape) -> PreTrainedConfig:
    rope = {"rope_theta": shape.rope_theta, "rope_type": "default"} | (shape.rope_scaling or {})
    keys = dict(
        hidden_size=shape.C, intermediate_size=shape.FF, num_hidden_layers=shape.L, num_attention_heads=shape.NH,
        num_key_value_heads=shape.NKV, vocab_size=shape.V, tie_word_embeddings=shape.tied, max_position_embeddings=256,
        rms_norm_eps=1e-5, rope_parameters=rope, use_cache=False)
    if shape.family in FAMILIES_WITHOUT_HEAD_DIM:
        assert shape.HD * shape.NH == shape.C, f"{shape.family} has heads of {shape.C} / {shape.NH} entries"
    else:
        keys["head_dim"] = shape.HD
    config = AutoConfig.for_model(shape.family, **keys, **shape.keys)
    config.architectures = [AutoModelForCausalLM._model_mapping[type(config)].__name__]
    config.dtype = "float32"
    return config


def head_dim(config: PreTrainedConfig) -> int:
    return getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads


def windows(config: PreTrainedConfig) -> list[int | None]:
    """How many keys a query of each layer sees, itself included; None: all."""
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["sliding_attention"] * config.num_hidden_layers
    return [window if kind == "sliding_attention" else None for kind in kinds]


def with_older_names(config: dict) -> dict:
    """The same config.json as transformers 4 wrote it."""
    rope = dict(config.pop("rope_parameters"))
    config["torch_dtype"] = config.pop("dtype")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = rope if rope["rope_type"] != "default" else None
    config["eos_token_id"] = [config["eos_token_id"], 3]
    config["transformers_version"] = "4.45.0"
    return dict(sorted(config.items()))


def initial_weights(config: PreTrainedConfig, rng: np.random.Generator) -> Tensors:
    """fp32, by Hugging Face name.  Large enough that attention is far from uniform and no gradient is mere rounding."""
    C, FF = config.hidden_size, config.intermediate_size
    attended = config.num_attention_heads * head_dim(config)
    std = {  # after a norm the input has unit entries: scores get a standard deviation of qk^2 * C = 2.25
        "q_proj": 1.5 / math.sqrt(C), "k_proj": 1.5 / math.sqrt(C), "v_proj": 1 / math.sqrt(C),
        "o_proj": 1 / math.sqrt(attended), "gate_proj": 1.5 / math.sqrt(C), "up_proj": 1 / math.sqrt(C),
        "down_proj": 1 / math.sqrt(FF), "lm_head": 1.5 / math.sqrt(C),
        "embed_tokens": 1.5 / math.sqrt(C) if config.tie_word_embeddings else 1.0}
    weights: Tensors = {}
    for name, parameter in AutoModelForCausalLM.from_config(config).named_parameters():
        normal = rng.standard_normal(parameter.shape)  # numpy's: the same on every machine
        noun, kind = name.split(".")[-2:]
        w = 0.5 * normal if kind == "bias" else std[noun] * normal if noun in std else 1 + 0.25 * normal
        weights[name] = torch.from_numpy(w.astype(np.float32))
    return weights


def token_batches(shape: Shape, steps: int, rng: np.random.Generator) -> Tensors:
    tokens = rng.integers(0, shape.V, (steps, shape.B, shape.T + 1), dtype=np.int32)
    if (pad := shape.keys.get("pad_token_id")) is not None:
        tokens[rng.random(tokens.shape) < 0.15] = pad
    labels = tokens[:, :, 1:].copy()
    if shape.ignored > 0:
        labels[rng.random(labels.shape) < shape.ignored] = -100
        labels[:, -1, :] = -100
    if shape.turns:
        labels[np.cumsum(rng.random(labels.shape) < 1 / shape.turns, axis=-1) % 2 == 0] = -100
    batch = {"input_ids": torch.from_numpy(tokens[:, :, :-1].copy())}
    if shape.documents:
        begins = rng.random(labels.shape) < 1 / shape.documents
        labels[:, :, :-1][begins[:, :, 1:]] = -100  # across a border nothing is predicted
        batch["position_ids"] = torch.from_numpy(positions_in_documents(begins))
    return batch | {"labels": torch.from_numpy(labels)}


def positions_in_documents(begins: np.ndarray) -> np.ndarray:
    """Positions (steps, B, T) that are 0 where a document begins.  The first of a row is a later part of one."""
    places = np.broadcast_to(np.arange(begins.shape[-1], dtype=np.int32), begins.shape)
    return places - np.maximum.accumulate(np.where(begins, places, 0), axis=-1)


def setting(shape: Shape) -> tuple[PreTrainedConfig, Tensors, Tensors, dict, Quantization | None]:
    """Configuration, weights, batch, recipe and quantization."""
    rng = np.random.default_rng(shape.seed)
    config = model_config(shape)
    weights = initial_weights(config, rng)
    batch = token_batches(shape, RECIPE["steps"], rng)
    recipe = RECIPE | {"grad_clip": shape.grad_clip} | ({"z_loss": shape.z_loss} if shape.z_loss else {})
    if shape.muon:
        recipe["muon"] = MUON | {"scale": shape.muon}
    return config, weights, batch, recipe, Quantization.parse(shape.fp8)


def sees(T: int, window: int | None, positions: Tensor | None) -> Tensor:
    """Whether query q sees key k (B or 1, T, T): k is not later, among the last `window`, and of the same document."""
    seen = torch.ones(T, T).tril() > (torch.ones(T, T).tril(-window) if window else 0)
    if positions is None:
        return seen[None]
    document = torch.arange(T) - positions  # where each token's document begins: the same for all of it
    return seen & (document[:, :, None] == document[:, None, :])


def inputs_of(config: PreTrainedConfig, batch: Tensors, step: int, dtype: torch.dtype) -> Tensors:
    """What the model is called with; for packed documents with their positions.  Packed documents and windows have a
    mask, or one for each kind of layer."""
    inputs = {"input_ids": batch["input_ids"][step].long()}
    positions = batch["position_ids"][step].long() if "position_ids" in batch else None
    of_layers = windows(config)
    if positions is None and not any(of_layers):
        return inputs

    def mask(window: int | None) -> Tensor:
        seen = sees(inputs["input_ids"].shape[1], window, positions)
        return torch.zeros(seen.shape, dtype=dtype).masked_fill(~seen, torch.finfo(dtype).min)[:, None]

    if hasattr(config, "layer_types"):
        kinds = zip(config.layer_types, of_layers, strict=True)
        inputs["attention_mask"] = {kind: mask(window) for kind, window in kinds}
    else:
        inputs["attention_mask"] = mask(of_layers[0])
    return inputs if positions is None else inputs | {"position_ids": positions}


class Norm64(nn.Module):
    """RMSNorm in float64."""

    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.weight = norm.weight
        self.eps = norm.variance_epsilon

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))


class Rotary64(nn.Module):
    """RoPE tables in float64, with frequency scaling."""

    def __init__(self, config: PreTrainedConfig) -> None:
        super().__init__()
        rope, HD = config.rope_parameters, head_dim(config)
        theta, factor = rope["rope_theta"], rope.get("factor", 1.0)
        inv_freq = theta ** (-torch.arange(0, HD, 2, dtype=torch.float64) / HD)
        kept = torch.zeros(HD // 2, dtype=torch.float64)  # 0: a long wave, slowed; 1: a short wave, as it was
        self.attention_factor = 1.0  # of cosines and sines
        if rope["rope_type"] == "llama3":
            low, high = rope["low_freq_factor"], rope["high_freq_factor"]
            turns = rope["original_max_position_embeddings"] * inv_freq / (2 * math.pi)
            kept = ((turns - low) / (high - low)).clamp(0, 1)
        elif rope["rope_type"] == "yarn":
            kept = 1 - yarn_ramp(rope, HD)
            mscale, all_dim = rope.get("mscale"), rope.get("mscale_all_dim")
            both = mscale and all_dim
            gain = yarn_gain(factor, mscale) / yarn_gain(factor, all_dim) if both else yarn_gain(factor, 1)
            self.attention_factor = rope.get("attention_factor") or gain
        self.inv_freq = (1 - kept) * inv_freq / factor + kept * inv_freq

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        angles = position_ids[..., None].double() * self.inv_freq
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor


def yarn_ramp(rope: dict, HD: int) -> Tensor:
    """0 of frequencies that turn more than beta_fast times in the original context, 1 of those below beta_slow."""
    def dimension(turns: float) -> float:
        return HD * math.log(rope["original_max_position_embeddings"] / (2 * math.pi * turns)) / (
            2 * math.log(rope["rope_theta"]))

    low, high = dimension(rope.get("beta_fast") or 32), dimension(rope.get("beta_slow") or 1)
    if rope.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, HD - 1)
    return ((torch.arange(HD // 2, dtype=torch.float64) - low) / ((high - low) or 0.001)).clamp(0, 1)


def yarn_gain(factor: float, mscale: float) -> float:
    return 0.1 * mscale * math.log(factor) + 1 if factor > 1 else 1.0


def build_model(config: PreTrainedConfig, weights: Tensors, dtype: torch.dtype, attention: str) -> PreTrainedModel:
    config = copy.deepcopy(config)
    model = AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=torch.float32)
    model.load_state_dict(weights, strict=not config.tie_word_embeddings)
    model.to(dtype)
    if dtype == torch.float64:
        model.model.rotary_emb = Rotary64(config)
        for name, module in list(model.named_modules()):
            if type(module).__name__.endswith("RMSNorm"):
                model.set_submodule(name, Norm64(module))
    else:  # .to(bfloat16) rounds the inverse frequencies, from_pretrained does not
        model.model.rotary_emb = type(model.model.rotary_emb)(config)
    return model


def mean_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """Mean over the labels that are not ignored.  bf16 logits are widened first, as Hugging Face does."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return nn.functional.cross_entropy(wide.flatten(0, 1), labels.long().flatten(), ignore_index=-100)


def mean_z_loss(logits: Tensor, labels: Tensor, coefficient: float) -> Tensor:
    """Mean of coefficient * logsumexp^2 over the labels that are not ignored."""
    wide = logits if logits.dtype == torch.float64 else logits.float()
    return coefficient * wide[labels != -100].logsumexp(-1).square().mean()


def run_recipe(compute: Callable[[Tensors, int], tuple[Tensor, Tensor, Tensors]], weights: Tensors, recipe: dict,
               dtype: torch.dtype, products: torch.dtype | None = None) -> Tensors:
    """The tensors of expected.safetensors.  `compute` gives logits, loss and gradients of (master weights, step);
    `dtype` is that of the master weights, `products` that in which the model computes, by default the same."""
    optimizer = AdamW(weights, recipe, dtype, products)
    result: Tensors = {}
    losses, norms = [], []
    for step in range(recipe["steps"]):
        logits, loss, grads = compute(optimizer.weights, step)
        if step == 0:
            result["logits"] = logits
            result |= {f"grad.{name}": g.clone() for name, g in grads.items()}
        losses.append(loss)
        norms.append(optimizer.update(grads))
    result |= {"loss": torch.stack(losses), "grad_norm": torch.stack(norms)}
    result |= {f"update.{name}": w - weights[name].to(w.dtype) for name, w in optimizer.weights.items()}
    return result


def train(config: PreTrainedConfig, weights: Tensors, batch: Tensors, recipe: dict, dtype: torch.dtype, attention: str,
          edit: Callable[[nn.Module], object] = lambda model: None) -> Tensors:
    """Runs the recipe by Hugging Face's model, edited.  Master weights are fp32 (float64 for float64)."""
    model = build_model(config, weights, dtype, attention)
    edit(model)
    parameters = dict(model.named_parameters())
    wide = torch.float64 if dtype == torch.float64 else torch.float32

    def compute(master: Tensors, step: int) -> tuple[Tensor, Tensor, Tensors]:
        with torch.no_grad():
            for name, parameter in parameters.items():
                parameter.copy_(master[name])
        model.zero_grad()
        logits = model(**inputs_of(config, batch, step, dtype)).logits
        labels = batch["labels"][step]
        total = loss = mean_loss(logits, labels)
        if "z_loss" in recipe:
            z_loss = mean_z_loss(logits, labels, recipe["z_loss"])
            z_losses.append(z_loss.detach())
            total = loss + z_loss
        total.backward()
        return logits.detach(), loss.detach(), {name: p.grad.to(wide) for name, p in parameters.items()}

    z_losses: list[Tensor] = []
    result = run_recipe(compute, weights, recipe, wide, dtype)
    return result | ({"z_loss": torch.stack(z_losses)} if z_losses else {})


def emulation(config: PreTrainedConfig, T: int, quantization: Quantization | None,
              dtype: torch.dtype = torch.bfloat16) -> Emulation:
    """For sequences of T tokens."""
    tables = Rotary64(config)(torch.zeros(1, dtype=torch.float64), torch.arange(T))
    cosine, sine = (table[:, : head_dim(config) // 2] for table in tables)
    return Emulation(config, cosine, sine, windows(config), quantization, dtype)


def train_emulated(config: PreTrainedConfig, weights: Tensors, batch: Tensors, recipe: dict,
                   quantization: Quantization | None) -> tuple[Tensors, Tensors]:
    """Runs the recipe in bf16 and FP8; also gives what operands.safetensors holds."""
    model = emulation(config, batch["input_ids"].shape[-1], quantization)
    operands = model.record = {}
    result = run_recipe(lambda master, step: model.gradients(master, batch["input_ids"][step], batch["labels"][step]),
                        weights, recipe, torch.float32, torch.bfloat16)
    return result, operands


def expected_run(config: PreTrainedConfig, weights: Tensors, batch: Tensors, recipe: dict) -> Tensors:
    with sdpa_kernel(SDPBackend.MATH):
        return train(config, weights, batch, recipe, torch.float64, "sdpa")


def relative_error(name: str, got: Tensor, expected: Tensors, recipe: dict) -> float:
    """|got - want| / max(|want|, floor), L2.  The floor keeps tensors that are nothing but rounding from counting."""
    want = expected[name].double()
    floor = 0.0
    if name.startswith("grad."):
        floor = expected["grad_norm"][0].item() / 1000
    elif name.startswith("update."):
        floor = recipe["learning_rate"] * recipe["steps"] * math.sqrt(want.numel()) / 1000
    return (got.double() - want).norm().item() / max(want.norm().item(), floor)


def measure(config: PreTrainedConfig, weights: Tensors, batch: Tensors, recipe: dict,
            quantization: Quantization | None = None,
            attentions: tuple[str, ...] = ("eager", "sdpa")) -> tuple[Tensors, Errors, Tensors]:
    """What is expected, PyTorch's errors by precision and tensor, the largest with these kinds of attention, and what
    operands.safetensors holds."""
    expected = {name: t.float().contiguous() for name, t in expected_run(config, weights, batch, recipe).items()}
    errors: Errors = {}

    def take(key: str, run: Tensors) -> None:
        before = errors.get(key, {})
        errors[key] = {name: max(before.get(name, 0.0), relative_error(name, run[name], expected, recipe))
                       for name in sorted(expected)}

    for key, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        for attention in attentions:  # one run at a time is in memory
            take(key, train(config, weights, batch, recipe, dtype, attention))
    operands: Tensors = {}
    if quantization:
        run, operands = train_emulated(config, weights, batch, recipe, quantization)
        take(quantization.recipe, run)
    return expected, errors, operands


def with_seeds(errors: Errors, others: list[Errors]) -> dict[str, dict[str, float | list[float]]]:
    """pytorch_error.json: the errors, and those of models with other weights, of three digits."""
    seeds = {f"{key}_seeds": {name: [float(f"{e[key][name]:.3g}") for e in (errors, *others)] for name in errors[key]}
             for key in errors if key != "fp32"}  # whose limit is wide enough without
    return errors | seeds


def attention_entropy(config: PreTrainedConfig, weights: Tensors, input_ids: Tensor) -> float:
    """Mean over layers, heads and rows of a row's entropy / log(its length); 1 = uniform attention.  Without documents."""
    with torch.no_grad():
        maps = build_model(config, weights, torch.float32, "eager")(input_ids=input_ids.long(),
                                                                    output_attentions=True).attentions
    rows = torch.stack(maps).double()[..., 1:, :]
    return (torch.special.entr(rows).sum(-1) / torch.arange(2, rows.shape[-1] + 1).log()).mean().item()


def save_dump(folder: Path, config: PreTrainedConfig, weights: Tensors, batch: Tensors, recipe: dict,
              quantization: Quantization | None, expected: Tensors, errors: dict[str, dict[str, float | list[float]]],
              operands: Tensors) -> None:
    if quantization:
        recipe = recipe | {"quantization": quantization.json()}
    folder.mkdir(parents=True, exist_ok=True)
    config.save_pretrained(folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    save_file(batch, folder / "batch.safetensors")
    save_file(expected, folder / "expected.safetensors")
    if operands:
        save_file(operands, folder / "operands.safetensors")
    (folder / "recipe.json").write_text(json.dumps(recipe, indent=2) + "\n")
    parts = [f"{json.dumps(key)}: {{\n" + ",\n".join(f"  {json.dumps(name)}: {json.dumps(e)}" for name, e in of.items())
             + "\n}" for key, of in errors.items()]  # a line for each tensor
    (folder / "pytorch_error.json").write_text("{" + ", ".join(parts) + "}\n")


def write_dump(folder: Path, shape: Shape) -> str:
    """Writes one dump; returns its line of the table."""
    config, weights, batch, recipe, quantization = setting(shape)
    expected, errors, operands = measure(config, weights, batch, recipe, quantization)
    others = [measure(config, initial_weights(config, np.random.default_rng((shape.seed, k))), batch, recipe,
                      quantization)[1] for k in range(1, SEEDS)]
    save_dump(folder, config, weights, batch, recipe, quantization, expected, with_seeds(errors, others), operands)
    if shape.older_config or shape.omitted:
        path = folder / "config.json"
        keys = {key: value for key, value in json.loads(path.read_text()).items() if key not in shape.omitted}
        path.write_text(json.dumps(with_older_names(keys) if shape.older_config else keys, indent=2) + "\n")

    size = sum(file.stat().st_size for file in folder.iterdir()) / 1024
    entropy = attention_entropy(config, weights, batch["input_ids"][0])
    worst = {key: max(e.values()) for key, e in errors.items()}
    return (f"{shape.C:4} {shape.FF:4} {shape.L:3} {shape.NH:3} {shape.NKV:4} {shape.HD:4} {shape.V:4} {shape.B:3} "
            f"{shape.T:4} | {size:7.0f} | {entropy:7.2f} | {expected['loss'][0]:6.3f} "
            f"{expected['grad_norm'][0]:6.2f} | {' '.join(f'{worst[key]:.1e}' for key in errors)}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes parity dumps of small models.")
    parser.add_argument("--out", type=Path, required=True, help="a folder per shape is written here")
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=list(SHAPES), metavar="NAME",
                        help=", ".join(SHAPES))
    parser.add_argument("--seed", type=int, help="default: the shape's own")
    parser.add_argument("--fp8", metavar="RECIPE", help=f"default: the shape's own; off, {', '.join(GROUPS)}, or an "
                        'object with options: {"recipe": "delayed", "margin": 1}')
    args = parser.parse_args()
    torch.set_num_threads(1)  # one order of additions: the same bytes each time
    torch.use_deterministic_algorithms(True)
    print(f"{'shape':15}    C   FF   L  NH  NKV   HD    V   B    T |     KiB | entropy |   loss   norm | "
          "fp32    bf16    fp8 error")
    for name in args.shape:
        shape = replace(SHAPES[name], seed=SHAPES[name].seed if args.seed is None else args.seed,
                        fp8=args.fp8 or SHAPES[name].fp8)
        print(f"{name:15} {write_dump(args.out / name, shape)}", flush=True)


if __name__ == "__main__":
    main()
