"""Llama's forward and backward as train_llama computes it in bf16, with FP8 products or without: where it rounds.

Activations and parameters are bf16; each operation computes in fp32 and rounds its result once.  Weight gradients stay
fp32.  No autograd: forward and backward stand side by side.  In float64 nothing rounds, and the result is that of
Hugging Face's model (test_fp8.py).  B sequences of T tokens, N = B T rows; a row is one document.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import LlamaConfig

from fp8 import BF16, PRODUCTS, DelayedScale, Operands, Quantization, Tensors, amax_of, product, recorded


@dataclass
class Block:
    """What a block's backward needs of its forward."""

    x: Tensor  # (N, C)
    rstd1: Tensor  # (N, 1)
    q: Tensor  # (B, NH, T, HD), rotated
    k: Tensor  # (B, NH, T, HD), rotated, repeated for each query head
    v: Tensor
    p: Tensor  # (B, NH, T, T) probabilities, fp32
    attention: Tensor  # (N, NH HD)
    middle: Tensor  # (N, C)
    rstd2: Tensor
    gate_up: Tensor  # (N, 2 FF)
    layers: dict[str, Operands]


class Emulation:
    """`cosine` and `sine` (T, HD / 2) are RoPE's in float64.  `record`, if a dictionary, gets what operands.safetensors
    holds of the next step."""

    def __init__(self, config: LlamaConfig, cosine: Tensor, sine: Tensor, quantization: Quantization | None,
                 dtype: torch.dtype = BF16) -> None:
        self.config, self.settings, self.dtype = config, quantization, dtype
        self.wide = torch.float32 if dtype == BF16 else dtype
        self.cosine, self.sine = cosine[:, None].to(self.wide), sine[:, None].to(self.wide)
        self.record: Tensors | None = None
        self.delayed: dict[str, DelayedScale] = {}
        if quantization and quantization.recipe == "delayed":
            self.delayed = {f"layers.{l}.{p}.{source}": DelayedScale(quantization.format_of(source), quantization)
                            for l in range(config.num_hidden_layers) for p in PRODUCTS for source in ("x", "w", "dy")}
        self.amaxes: dict[str, float] = {}

    # ------------------------------------------------------------------------------------------ a linear layer

    def linear(self, layers: dict[str, Operands], layer: int, p: str, x: Tensor, w: Tensor) -> Tensor:
        name = f"layers.{layer}.{p}"
        scales = {source: self.delayed[f"{name}.{source}"].scale() for source in ("x", "w", "dy") if self.delayed}
        layers[p] = Operands(name, self.settings, {"x": x, "w": w}, scales)
        return self.product(layers[p], "forward").to(self.dtype)

    def linear_backward(self, operands: Operands, dy: Tensor) -> tuple[Tensor, Tensor]:
        """dx, and dw in fp32."""
        operands.sources["dy"] = dy
        dx, dw = (self.product(operands, direction) for direction in ("dgrad", "wgrad"))
        for source, x in operands.sources.items() if self.delayed or self.record is not None else ():
            name = f"{operands.name}.{source}"
            self.amaxes[name] = max(self.amaxes.get(name, 0.0), amax_of(x, "tensor").item())
            if self.record is not None:
                self.record[f"{operands.name}.{source}"] = x.clone()
        return dx.to(self.dtype), dw

    def product(self, operands: Operands, direction: str) -> Tensor:
        out = product(*operands.pair(direction), self.wide)
        if self.record is not None:
            self.record |= recorded(operands, direction, out)
        return out

    # ------------------------------------------------------------------------------------------ other operations

    def norm(self, x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        """x * rstd * w, rstd."""
        wide = x.to(self.wide)
        rstd = (wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return (wide * rstd * w.to(self.wide)).to(self.dtype), rstd

    def norm_backward(self, dresidual: Tensor, dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
        """dresidual + dx, rounded once; dw."""
        dy, x = dy.to(self.wide), x.to(self.wide)
        scaled = dy * w.to(self.wide)
        slope = (scaled * x).mean(-1, keepdim=True) * rstd.square()
        dx = rstd * (scaled - x * slope)
        return (dresidual.to(self.wide) + dx).to(self.dtype), (dy * x * rstd).sum(0)

    def add(self, x: Tensor, delta: Tensor) -> Tensor:
        return (x.to(self.wide) + delta.to(self.wide)).to(self.dtype)

    def rope(self, heads: Tensor, sign: int) -> Tensor:
        """heads (B, T, heads, HD) rotated by their position's angles, or back."""
        x, y = heads.to(self.wide).chunk(2, -1)
        sine = sign * self.sine
        return torch.cat((x * self.cosine - y * sine, y * self.cosine + x * sine), -1).to(self.dtype)

    def attention(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """(B, NH, T, HD), and the probabilities.  Those that multiply v are rounded before the division."""
        T, HD = q.shape[-2:]
        scores = (q.to(self.wide) @ k.to(self.wide).mT) / math.sqrt(HD)
        scores = scores.masked_fill_(torch.ones(T, T, dtype=torch.bool).triu(1), -math.inf)
        p = (scores - scores.amax(-1, keepdim=True)).exp_()
        total = p.sum(-1, keepdim=True)
        out = (p.to(self.dtype).to(self.wide) @ v.to(self.wide)) / total
        return out.to(self.dtype), p / total

    def attention_backward(self, dout: Tensor, out: Tensor, p: Tensor, q: Tensor, k: Tensor,
                           v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """dq, dk, dv (B, NH, T, HD), wide."""
        dout, out, q, k, v = (t.to(self.wide) for t in (dout, out, q, k, v))
        dp = dout @ v.mT
        dscores = (p * (dp - (dout * out).sum(-1, keepdim=True))).to(self.dtype).to(self.wide) / math.sqrt(q.shape[-1])
        return dscores @ k, dscores.mT @ q, p.to(self.dtype).to(self.wide).mT @ dout

    def heads(self, x: Tensor, B: int) -> Tensor:
        """(N, heads HD) to (B, T, heads, HD)."""
        return x.view(B, -1, x.shape[-1] // self.config.head_dim, self.config.head_dim)

    # ------------------------------------------------------------------------------------------ blocks

    def weight(self, weights: Tensors, layer: int, *nouns: str) -> Tensor:
        return torch.cat([weights[f"model.layers.{layer}.{noun}.weight"].to(self.dtype) for noun in nouns])

    def block_forward(self, weights: Tensors, layer: int, x: Tensor, B: int) -> tuple[Block, Tensor]:
        c = self.config
        NH, NKV, w = c.num_attention_heads, c.num_key_value_heads, lambda *nouns: self.weight(weights, layer, *nouns)
        layers: dict[str, Operands] = {}
        norm1, rstd1 = self.norm(x, w("input_layernorm"))  # (N, C)
        w_qkv = w("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        heads = self.heads(self.linear(layers, layer, "qkv", norm1, w_qkv), B)  # (B, T, NH + 2 NKV, HD)
        rotated, v = self.rope(heads[:, :, : NH + NKV], 1), heads[:, :, NH + NKV :]
        q = rotated[:, :, :NH].transpose(1, 2)  # (B, NH, T, HD)
        k, v = (t.transpose(1, 2).repeat_interleave(NH // NKV, 1) for t in (rotated[:, :, NH:], v))
        out, p = self.attention(q, k, v)
        attention = out.transpose(1, 2).reshape(x.shape[0], NH * c.head_dim)
        middle = self.add(x, self.linear(layers, layer, "o", attention, w("self_attn.o_proj")))  # (N, C)
        norm2, rstd2 = self.norm(middle, w("post_attention_layernorm"))
        gate_up = self.linear(layers, layer, "gate_up", norm2, w("mlp.gate_proj", "mlp.up_proj"))  # (N, 2 FF)
        gate, up = gate_up.to(self.wide).chunk(2, -1)
        swiglu = (torch.nn.functional.silu(gate) * up).to(self.dtype)  # (N, FF)
        delta = self.linear(layers, layer, "down", swiglu, w("mlp.down_proj"))  # (N, C)
        return Block(x, rstd1, q, k, v, p, attention, middle, rstd2, gate_up, layers), self.add(middle, delta)

    def block_backward(self, weights: Tensors, layer: int, block: Block, dresidual: Tensor, grads: Tensors,
                       B: int) -> Tensor:
        c, layers = self.config, block.layers
        NH, NKV, HD, N = c.num_attention_heads, c.num_key_value_heads, c.head_dim, dresidual.shape[0]

        def keep(dw: Tensor, *nouns: str) -> None:
            rows = [weights[f"model.layers.{layer}.{noun}.weight"].shape[0] for noun in nouns]
            grads.update(zip((f"model.layers.{layer}.{noun}.weight" for noun in nouns), dw.split(rows)))

        dswiglu, dw = self.linear_backward(layers["down"], dresidual)  # (N, FF)
        keep(dw, "mlp.down_proj")
        (gate, up), d = block.gate_up.to(self.wide).chunk(2, -1), dswiglu.to(self.wide)
        sigmoid = gate.sigmoid()
        silu = gate * sigmoid
        dgate_up = torch.cat((d * up * (sigmoid + silu * (1 - sigmoid)), d * silu), -1).to(self.dtype)  # (N, 2 FF)
        dnorm, dw = self.linear_backward(layers["gate_up"], dgate_up)
        keep(dw, "mlp.gate_proj", "mlp.up_proj")
        dresidual, dw = self.norm_backward(dresidual, dnorm, block.middle,
                                           self.weight(weights, layer, "post_attention_layernorm"), block.rstd2)
        keep(dw, "post_attention_layernorm")
        dattention, dw = self.linear_backward(layers["o"], dresidual)  # (N, NH HD)
        keep(dw, "self_attn.o_proj")
        dout, out = (self.heads(t, B).transpose(1, 2) for t in (dattention, block.attention))
        dq, dk, dv = self.attention_backward(dout, out, block.p, block.q, block.k, block.v)
        dk, dv = (t.unflatten(1, (NKV, NH // NKV)).sum(2) for t in (dk, dv))
        dq, dk, dv = (t.transpose(1, 2).to(self.dtype) for t in (dq, dk, dv))  # (B, T, heads, HD)
        dqkv = torch.cat((self.rope(torch.cat((dq, dk), 2), -1), dv), 2).reshape(N, (NH + 2 * NKV) * HD)
        dnorm, dw = self.linear_backward(layers["qkv"], dqkv)  # (N, C)
        keep(dw, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        dresidual, dw = self.norm_backward(dresidual, dnorm, block.x, self.weight(weights, layer, "input_layernorm"),
                                           block.rstd1)
        keep(dw, "input_layernorm")
        return dresidual

    # ------------------------------------------------------------------------------------------ a step

    def gradients(self, weights: Tensors, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        """A step of one micro-batch, input_ids and labels (B, T), or of several, (k, B, T): logits (B, T, V) or
        (k, B, T, V), the mean loss, and the gradients in fp32 by Hugging Face's names.  `weights` are the master
        weights.  Current scales belong to a micro-batch, delayed ones to the step."""
        micro_batches = [(input_ids, labels)] if labels.dim() == 2 else list(zip(input_ids, labels))
        count = (labels >= 0).sum()
        logits, loss, grads = self.micro_batch(weights, *micro_batches[0], count)
        every_logits = [logits]
        for micro_batch in micro_batches[1:]:
            logits, more_loss, more = self.micro_batch(weights, *micro_batch, count)
            every_logits.append(logits)
            loss = loss + more_loss
            for name, grad in more.items():
                grads[name] += grad
        for name, scale in self.delayed.items():
            scale.end_step(self.amaxes[name])
        self.amaxes.clear()
        self.record = None
        return every_logits[0] if labels.dim() == 2 else torch.stack(every_logits), loss / count, grads

    def micro_batch(self, weights: Tensors, input_ids: Tensor, labels: Tensor,
                    count: Tensor) -> tuple[Tensor, Tensor, Tensors]:
        """Logits (B, T, V), the sum of the losses, and its part of the gradients of a step of `count` labels."""
        c = self.config
        B, labels = input_ids.shape[0], labels.flatten().long()
        embedding = weights["model.embed_tokens.weight"].to(self.dtype)
        head_name = "model.embed_tokens.weight" if c.tie_word_embeddings else "lm_head.weight"
        head, final = weights[head_name].to(self.dtype).to(self.wide), weights["model.norm.weight"].to(self.dtype)
        x = embedding[input_ids.flatten().long()]
        blocks: list[Block] = []
        for layer in range(c.num_hidden_layers):
            block, x = self.block_forward(weights, layer, x, B)
            blocks.append(block)
        norm, rstd = self.norm(x, final)
        logits = (norm.to(self.wide) @ head.t()).to(self.dtype)  # (N, V)

        counted = labels >= 0
        log_p = logits.to(self.wide).log_softmax(-1)
        picked = labels.clamp(min=0)[:, None]
        loss = -log_p.gather(1, picked)[counted].sum()
        dlogits = log_p.exp_()
        dlogits.scatter_add_(1, picked, torch.full_like(dlogits[:, :1], -1))
        dlogits = (dlogits * (counted.to(self.wide) / count)[:, None]).to(self.dtype).to(self.wide)

        grads: Tensors = {head_name: dlogits.t() @ norm.to(self.wide)}
        dnorm = (dlogits @ head).to(self.dtype)
        dresidual, grads["model.norm.weight"] = self.norm_backward(torch.zeros_like(x), dnorm, x, final, rstd)
        for layer in reversed(range(c.num_hidden_layers)):
            dresidual = self.block_backward(weights, layer, blocks[layer], dresidual, grads, B)
        dembedding = torch.zeros(embedding.shape, dtype=self.wide)
        dembedding.index_add_(0, input_ids.flatten().long(), dresidual.to(self.wide))
        name = "model.embed_tokens.weight"
        grads[name] = grads[name] + dembedding if c.tie_word_embeddings else dembedding
        return logits.view(B, -1, c.vocab_size), loss, {name: grads[name] for name in weights}
