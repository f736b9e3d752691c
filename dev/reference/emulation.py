"""A model's forward and backward as train_llama computes it in bf16, with FP8 products or without: where it rounds.

Activations and parameters are bf16; each operation computes in fp32 and rounds its result once.  The biases of q, k and
v, their norms and RoPE are one operation, and so are a norm behind attention and the sum with its residual.  Weight
gradients stay fp32.  No autograd: forward and backward stand side by side.  In float64 nothing rounds, and the result
is that of Hugging Face's model (test_fp8.py).  B sequences of T tokens, N = B T rows; a row is one document.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from fp8 import (BF16, PRODUCTS, DelayedScale, Operands, Quantization, Tensors, amax_of, head_gradient_scale, product,
                 recorded)


@dataclass
class Block:
    """What a block's backward needs of its forward."""

    x: Tensor  # (N, C); its norm is the input of qkv, or x itself, if norms stand behind attention and MLP
    rstd1: Tensor | None  # (N, 1) of the norm before attention, or of that behind it
    qkv: Tensor  # (N, (NH + 2 NKV) HD), with biases; wide
    rstd_qk: list[Tensor]  # of the norms of q and k, if there are any: see qk_parts
    q: Tensor  # (B, NH, T, HD), rotated
    k: Tensor  # (B, NH, T, HD), rotated, repeated for each query head
    v: Tensor
    p: Tensor  # (B, NH, T, T) probabilities, fp32
    attention: Tensor  # (N, NH HD)
    o: Tensor  # (N, C)
    middle: Tensor  # (N, C)
    rstd2: Tensor
    gate_up: Tensor  # (N, 2 FF)
    down: Tensor  # (N, C)
    layers: dict[str, Operands]


class Emulation:
    """`cosine` and `sine` (T, HD / 2) are RoPE's in float64; `windows` says how many keys a query of each layer sees,
    None for all.  `record`, if a dictionary, gets what operands.safetensors holds of the next step."""

    def __init__(self, config: PreTrainedConfig, cosine: Tensor, sine: Tensor, windows: list[int | None],
                 quantization: Quantization | None, dtype: torch.dtype = BF16) -> None:
        self.config, self.windows, self.settings, self.dtype = config, windows, quantization, dtype
        self.HD = 2 * cosine.shape[-1]
        self.norms_behind = config.model_type == "olmo2"  # attention and MLP, not before them
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
        """x * rstd * w, not rounded, and rstd."""
        wide = x.to(self.wide)
        rstd = (wide.square().mean(-1, keepdim=True) + self.config.rms_norm_eps).rsqrt()
        return wide * rstd * w.to(self.wide), rstd

    def norm_backward(self, dy: Tensor, x: Tensor, w: Tensor, rstd: Tensor) -> tuple[Tensor, Tensor]:
        """dx, not rounded; dw."""
        dy, x = dy.to(self.wide), x.to(self.wide)
        scaled = dy * w.to(self.wide)
        slope = (scaled * x).mean(-1, keepdim=True) * rstd.square()
        return rstd * (scaled - x * slope), (dy * x * rstd).flatten(0, -2).sum(0)

    def add(self, x: Tensor, delta: Tensor) -> Tensor:
        return (x.to(self.wide) + delta.to(self.wide)).to(self.dtype)

    def rope(self, heads: Tensor, sign: int) -> Tensor:
        """heads (B, T, heads, HD) rotated by their position's angles, or back; not rounded."""
        x, y = heads.to(self.wide).chunk(2, -1)
        sine = sign * self.sine
        return torch.cat((x * self.cosine - y * sine, y * self.cosine + x * sine), -1)

    def qk_parts(self, weights: Tensors, layer: int, qkv: Tensor) -> list[tuple[str, Tensor, Tensor]]:
        """Name, entries and weight of the norms of q and k: entries (N, heads, HD), or (N, 1, heads HD) of a norm over
        all heads.  Empty without such norms."""
        c = self.config
        parts = []
        columns = qkv.split([heads * self.HD for heads in (c.num_attention_heads, *2 * [c.num_key_value_heads])], -1)
        for noun, x in zip(("self_attn.q_norm", "self_attn.k_norm"), columns):
            if f"model.layers.{layer}.{noun}.weight" in weights:
                w = self.weight(weights, layer, noun)
                parts.append((noun, x.unflatten(-1, (-1, w.numel())), w))
        return parts

    def attention(self, q: Tensor, k: Tensor, v: Tensor, window: int | None) -> tuple[Tensor, Tensor]:
        """(B, NH, T, HD), and the probabilities.  Those that multiply v are rounded before the division."""
        T, HD = q.shape[-2:]
        scores = (q.to(self.wide) @ k.to(self.wide).mT) / math.sqrt(HD)
        seen = torch.ones(T, T, dtype=torch.bool).tril()
        if window:
            seen &= torch.ones(T, T, dtype=torch.bool).triu(1 - window)
        scores = scores.masked_fill_(~seen, -math.inf)
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
        return x.view(B, -1, x.shape[-1] // self.HD, self.HD)

    # ------------------------------------------------------------------------------------------ blocks

    def weight(self, weights: Tensors, layer: int, *nouns: str) -> Tensor:
        return torch.cat([weights[f"model.layers.{layer}.{noun}.weight"].to(self.dtype) for noun in nouns])

    def bias(self, weights: Tensors, layer: int) -> Tensor | float:
        """Of q, k and v."""
        names = [f"model.layers.{layer}.self_attn.{letter}_proj.bias" for letter in "qkv"]
        return torch.cat([weights[name].to(self.dtype).to(self.wide) for name in names]) if names[0] in weights else 0.0

    def block_forward(self, weights: Tensors, layer: int, x: Tensor, B: int) -> tuple[Block, Tensor]:
        c = self.config
        NH, NKV, w = c.num_attention_heads, c.num_key_value_heads, lambda *nouns: self.weight(weights, layer, *nouns)
        layers: dict[str, Operands] = {}
        source, rstd1 = x, None  # (N, C)
        if not self.norms_behind:
            norm, rstd1 = self.norm(x, w("input_layernorm"))
            source = norm.to(self.dtype)
        w_qkv = w("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
        qkv = self.linear(layers, layer, "qkv", source, w_qkv).to(self.wide) + self.bias(weights, layer)
        normed, rstd_qk = qkv, []
        if parts := self.qk_parts(weights, layer, qkv):
            norms, rstd_qk = zip(*(self.norm(entries, weight) for _, entries, weight in parts))
            normed = torch.cat([*(norm.flatten(1) for norm in norms), qkv[:, (NH + NKV) * self.HD :]], 1)
        heads = self.heads(normed, B)  # (B, T, NH + 2 NKV, HD)
        rotated, v = self.rope(heads[:, :, : NH + NKV], 1).to(self.dtype), heads[:, :, NH + NKV :].to(self.dtype)
        q = rotated[:, :, :NH].transpose(1, 2)  # (B, NH, T, HD)
        k, v = (t.transpose(1, 2).repeat_interleave(NH // NKV, 1) for t in (rotated[:, :, NH:], v))
        out, p = self.attention(q, k, v, self.windows[layer])
        attention = out.transpose(1, 2).reshape(x.shape[0], NH * self.HD)
        o = self.linear(layers, layer, "o", attention, w("self_attn.o_proj"))  # (N, C)
        if self.norms_behind:
            norm, rstd1 = self.norm(o, w("post_attention_layernorm"))
            middle = source = self.add(x, norm)  # (N, C)
        else:
            middle = self.add(x, o)
            norm, rstd2 = self.norm(middle, w("post_attention_layernorm"))
            source = norm.to(self.dtype)
        gate_up = self.linear(layers, layer, "gate_up", source, w("mlp.gate_proj", "mlp.up_proj"))  # (N, 2 FF)
        gate, up = gate_up.to(self.wide).chunk(2, -1)
        swiglu = (torch.nn.functional.silu(gate) * up).to(self.dtype)  # (N, FF)
        down = delta = self.linear(layers, layer, "down", swiglu, w("mlp.down_proj"))  # (N, C)
        if self.norms_behind:
            norm, rstd2 = self.norm(down, w("post_feedforward_layernorm"))
            delta = norm.to(self.dtype)
        block = Block(x, rstd1, qkv, list(rstd_qk), q, k, v, p, attention, o, middle, rstd2, gate_up, down, layers)
        return block, self.add(middle, delta)

    def block_backward(self, weights: Tensors, layer: int, block: Block, dresidual: Tensor, grads: Tensors,
                       B: int) -> Tensor:
        c, layers = self.config, block.layers
        NH, NKV, HD, N = c.num_attention_heads, c.num_key_value_heads, self.HD, dresidual.shape[0]

        def keep(dw: Tensor, *nouns: str) -> None:
            rows = [weights[f"model.layers.{layer}.{noun}.weight"].shape[0] for noun in nouns]
            grads.update(zip((f"model.layers.{layer}.{noun}.weight" for noun in nouns), dw.split(rows)))

        def norm_backward(dy: Tensor, x: Tensor, noun: str, rstd: Tensor) -> Tensor:
            dx, dw = self.norm_backward(dy, x, self.weight(weights, layer, noun), rstd)
            keep(dw, noun)
            return dx

        def half_backward(source: Tensor, before: str, behind: str, rstd: Tensor, output: Tensor,
                          inside: Callable[[Tensor], Tensor]) -> Tensor:
            """dresidual + the gradient by way of attention or MLP: `inside` makes an output's gradient the input's."""
            if self.norms_behind:
                return self.add(dresidual, inside(norm_backward(dresidual, output, behind, rstd).to(self.dtype)))
            return self.add(dresidual, norm_backward(inside(dresidual), source, before, rstd))

        def mlp_backward(ddown: Tensor) -> Tensor:
            dswiglu, dw = self.linear_backward(layers["down"], ddown)  # (N, FF)
            keep(dw, "mlp.down_proj")
            (gate, up), d = block.gate_up.to(self.wide).chunk(2, -1), dswiglu.to(self.wide)
            sigmoid = gate.sigmoid()
            silu = gate * sigmoid
            dgate_up = torch.cat((d * up * (sigmoid + silu * (1 - sigmoid)), d * silu), -1).to(self.dtype)  # (N, 2 FF)
            dx, dw = self.linear_backward(layers["gate_up"], dgate_up)
            keep(dw, "mlp.gate_proj", "mlp.up_proj")
            return dx

        def attention_backward(do: Tensor) -> Tensor:
            dattention, dw = self.linear_backward(layers["o"], do)  # (N, NH HD)
            keep(dw, "self_attn.o_proj")
            dout, out = (self.heads(t, B).transpose(1, 2) for t in (dattention, block.attention))
            dq, dk, dv = self.attention_backward(dout, out, block.p, block.q, block.k, block.v)
            dk, dv = (t.unflatten(1, (NKV, NH // NKV)).sum(2) for t in (dk, dv))
            dq, dk, dv = (t.transpose(1, 2).to(self.dtype) for t in (dq, dk, dv))  # (B, T, heads, HD)
            drotated = self.rope(torch.cat((dq, dk), 2), -1).reshape(N, (NH + NKV) * HD)
            if parts := self.qk_parts(weights, layer, block.qkv):
                dparts = drotated.split([NH * HD, NKV * HD], 1)
                drotated = torch.cat([norm_backward(d.view_as(x), x, noun, rstd).flatten(1) for d, (noun, x, _), rstd in
                                      zip(dparts, parts, block.rstd_qk)], 1)
            dqkv = torch.cat((drotated, dv.reshape(N, NKV * HD)), 1).to(self.dtype)
            if f"model.layers.{layer}.self_attn.q_proj.bias" in weights:
                dbias = dqkv.to(self.wide).sum(0).split([NH * HD, NKV * HD, NKV * HD])
                grads.update({f"model.layers.{layer}.self_attn.{x}_proj.bias": d for x, d in zip("qkv", dbias)})
            dx, dw = self.linear_backward(layers["qkv"], dqkv)  # (N, C)
            keep(dw, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            return dx

        dresidual = half_backward(block.middle, "post_attention_layernorm", "post_feedforward_layernorm", block.rstd2,
                                  block.down, mlp_backward)
        return half_backward(block.x, "input_layernorm", "post_attention_layernorm", block.rstd1, block.o,
                             attention_backward)

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
        norm = norm.to(self.dtype)
        in_fp8 = self.settings.head if self.settings else "off"
        products = None if in_fp8 == "off" else Operands(
            "head", self.settings.of_head(), {"x": norm, "w": head.to(self.dtype)},
            {"dy": head_gradient_scale(int(count))})
        logits = (product(*products.pair("forward"), self.wide) if in_fp8 == "on" else norm.to(self.wide) @ head.t())
        logits = logits.to(self.dtype)  # (N, V)

        counted = labels >= 0
        log_p = logits.to(self.wide).log_softmax(-1)
        picked = labels.clamp(min=0)[:, None]
        loss = -log_p.gather(1, picked)[counted].sum()
        dlogits = log_p.exp_()
        dlogits.scatter_add_(1, picked, torch.full_like(dlogits[:, :1], -1))
        dlogits = (dlogits * (counted.to(self.wide) / count)[:, None]).to(self.dtype)

        if products:
            products.sources["dy"] = dlogits
            dnorm, dhead = (product(*products.pair(direction), self.wide) for direction in ("dgrad", "wgrad"))
        else:
            dnorm, dhead = dlogits.to(self.wide) @ head, dlogits.to(self.wide).t() @ norm.to(self.wide)
        dnorm = dnorm.to(self.dtype)
        grads: Tensors = {head_name: dhead}
        dx, grads["model.norm.weight"] = self.norm_backward(dnorm, x, final, rstd)
        dresidual = dx.to(self.dtype)
        for layer in reversed(range(c.num_hidden_layers)):
            dresidual = self.block_backward(weights, layer, blocks[layer], dresidual, grads, B)
        dembedding = torch.zeros(embedding.shape, dtype=self.wide)
        dembedding.index_add_(0, input_ids.flatten().long(), dresidual.to(self.wide))
        if c.pad_token_id is not None:
            dembedding[c.pad_token_id] = 0
        name = "model.embed_tokens.weight"
        grads[name] = grads[name] + dembedding if c.tie_word_embeddings else dembedding
        return logits.view(B, -1, c.vocab_size), loss, {name: grads[name] for name in weights}
