#!/usr/bin/env python3
"""one_token_dump.py FOLDER: writes a parity dump of sequences of one token, without PyTorch.

A token that sees only itself has all of the attention, whatever its query and key are. So the gradients of q and k are 0,
and a program has nothing but rounding there. All is computed in float64 (dev/reference/README.md tells what a dump is).
PyTorch's errors are said to be 5e-2, larger than those of bf16, but for the gradients of q and k, of which PyTorch's
order of sums leaves 9e-15, and for their updates.
"""
import json
import math
import random
import struct
import sys
from pathlib import Path

C, HEADS, HD, FF, V, B, STEPS = 32, 2, 16, 48, 69, 8, 3
RECIPE = {"learning_rate": 1e-3, "beta1": 0.9, "beta2": 0.95, "eps": 1e-5, "weight_decay": 0.1, "steps": STEPS,
          "grad_clip": 1.0}
EPS = 1e-5
LAYER = "model.layers.0."
Q, K, VALUE, O = (LAYER + f"self_attn.{p}_proj.weight" for p in "qkvo")
GATE, UP, DOWN = (LAYER + f"mlp.{p}_proj.weight" for p in ("gate", "up", "down"))
NORM1, NORM2, NORM = LAYER + "input_layernorm.weight", LAYER + "post_attention_layernorm.weight", "model.norm.weight"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
SHAPES = {EMBEDDING: (V, C), Q: (HEADS * HD, C), K: (HD, C), VALUE: (HD, C), O: (C, HEADS * HD), GATE: (FF, C),
          UP: (FF, C), DOWN: (C, FF), NORM1: (C,), NORM2: (C,), NORM: (C,), HEAD: (V, C)}


def fp32(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def write(path, tensors):
    """tensors: name -> (type, shape, list of numbers)."""
    header, data = {}, b""
    for name, (kind, shape, numbers) in tensors.items():
        begin = len(data)
        data += struct.pack(f"<{len(numbers)}{'f' if kind == 'F32' else 'i'}", *numbers)
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


# A matrix (rows, columns) is a list, row by row.
def multiply(w, x):
    return [sum(a * b for a, b in zip(w[r:r + len(x)], x)) for r in range(0, len(w), len(x))]


def multiply_backward(w, x, dy, dw):
    """dw += dy xᵀ; returns wᵀ dy."""
    dx = [0.0] * len(x)
    for r, d in enumerate(dy):
        for c in range(len(x)):
            dw[r * len(x) + c] += d * x[c]
            dx[c] += d * w[r * len(x) + c]
    return dx


def norm(x, w):
    rstd = 1 / math.sqrt(sum(a * a for a in x) / len(x) + EPS)
    return [a * rstd * b for a, b in zip(x, w)], rstd


def norm_backward(x, rstd, w, dy, dw):
    mean = sum(a * b * d for a, b, d in zip(x, w, dy)) * rstd / len(x)
    for i, (a, d) in enumerate(zip(x, dy)):
        dw[i] += d * a * rstd
    return [rstd * (b * d - a * rstd * mean) for a, b, d in zip(x, w, dy)]


def add(a, b):
    return [x + y for x, y in zip(a, b)]


def token(w, grad, token_in, label):
    """The logits and the loss of a token; adds the gradients of loss / B."""
    x = w[EMBEDDING][token_in * C:(token_in + 1) * C]
    n1, rstd1 = norm(x, w[NORM1])
    attention = multiply(w[VALUE], n1) * HEADS  # each head has the value of the one key and value head
    x1 = add(x, multiply(w[O], attention))
    n2, rstd2 = norm(x1, w[NORM2])
    gate, up = multiply(w[GATE], n2), multiply(w[UP], n2)
    sigmoid = [1 / (1 + math.exp(-a)) for a in gate]
    swiglu = [a * s * u for a, s, u in zip(gate, sigmoid, up)]
    x2 = add(x1, multiply(w[DOWN], swiglu))
    n, rstd = norm(x2, w[NORM])
    logits = multiply(w[HEAD], n)
    total = sum(math.exp(a) for a in logits)
    d = [(math.exp(a) / total - (i == label)) / B for i, a in enumerate(logits)]

    dx2 = norm_backward(x2, rstd, w[NORM], multiply_backward(w[HEAD], n, d, grad[HEAD]), grad[NORM])
    ds = multiply_backward(w[DOWN], swiglu, dx2, grad[DOWN])
    dup = [s * a * g for s, a, g in zip(sigmoid, gate, ds)]
    dgate = [g * u * s * (1 + a * (1 - s)) for g, u, s, a in zip(ds, up, sigmoid, gate)]
    dn2 = add(multiply_backward(w[GATE], n2, dgate, grad[GATE]), multiply_backward(w[UP], n2, dup, grad[UP]))
    dx1 = add(dx2, norm_backward(x1, rstd2, w[NORM2], dn2, grad[NORM2]))
    dattention = multiply_backward(w[O], attention, dx1, grad[O])
    dvalue = [sum(dattention[i::HD]) for i in range(HD)]
    dx = add(dx1, norm_backward(x, rstd1, w[NORM1], multiply_backward(w[VALUE], n1, dvalue, grad[VALUE]), grad[NORM1]))
    for c in range(C):
        grad[EMBEDDING][token_in * C + c] += dx[c]
    return logits, math.log(total) - logits[label]


def main():
    folder = Path(sys.argv[1])
    folder.mkdir()
    numbers = random.Random(1)
    size = {name: math.prod(shape) for name, shape in SHAPES.items()}
    initial = {name: [fp32(numbers.gauss(1, 0.25) if len(shape) == 1 else numbers.gauss(0, 0.15)) for _ in range(size[name])]
               for name, shape in SHAPES.items()}
    ids = [[numbers.randrange(V) for _ in range(B)] for _ in range(2 * STEPS)]
    w = {name: list(values) for name, values in initial.items()}
    m, v = ({name: [0.0] * size[name] for name in SHAPES} for _ in range(2))
    logits, losses, norms, first = [], [], [], {}
    for step in range(STEPS):
        grad = {name: [0.0] * size[name] for name in SHAPES}
        each = [token(w, grad, *pair) for pair in zip(ids[2 * step], ids[2 * step + 1])]
        losses.append(sum(loss for _, loss in each) / B)
        norms.append(math.sqrt(sum(g * g for values in grad.values() for g in values)))
        if step == 0:
            logits, first = [x for row, _ in each for x in row], grad
        clip = min(1, RECIPE["grad_clip"] / norms[-1])
        beta1, beta2, rate = RECIPE["beta1"], RECIPE["beta2"], RECIPE["learning_rate"]
        for name in SHAPES:
            decay = RECIPE["weight_decay"] if len(SHAPES[name]) == 2 else 0
            for i, g in enumerate(grad[name]):
                g *= clip
                m[name][i] = beta1 * m[name][i] + (1 - beta1) * g
                v[name][i] = beta2 * v[name][i] + (1 - beta2) * g * g
                mean, square = m[name][i] / (1 - beta1 ** (step + 1)), v[name][i] / (1 - beta2 ** (step + 1))
                w[name][i] -= rate * (mean / (math.sqrt(square) + RECIPE["eps"]) + decay * w[name][i])

    write(folder / "model.safetensors", {name: ("F32", SHAPES[name], values) for name, values in initial.items()})
    write(folder / "batch.safetensors", {"input_ids": ("I32", (STEPS, B, 1), sum(ids[::2], [])),
                                         "labels": ("I32", (STEPS, B, 1), sum(ids[1::2], []))})
    expected = {"logits": ("F32", (B, 1, V), logits), "loss": ("F32", (STEPS,), losses), "grad_norm": ("F32", (STEPS,), norms)}
    for name, shape in SHAPES.items():
        expected["grad." + name] = ("F32", shape, first[name])
        expected["update." + name] = ("F32", shape, [a - b for a, b in zip(w[name], initial[name])])
    write(folder / "expected.safetensors", expected)
    errors = {name: 5e-2 for name in expected}
    for name in Q, K:
        errors["grad." + name], errors["update." + name] = 9e-15, 1e-6
    (folder / "pytorch_error.json").write_text(json.dumps({"fp32": errors, "bf16": errors}))
    (folder / "recipe.json").write_text(json.dumps(RECIPE))
    (folder / "config.json").write_text(json.dumps({
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": C,
        "num_hidden_layers": 1, "num_attention_heads": HEADS, "num_key_value_heads": 1, "head_dim": HD,
        "intermediate_size": FF, "vocab_size": V, "rms_norm_eps": EPS, "rope_theta": 500.0, "tie_word_embeddings": False,
        "max_position_embeddings": 64, "torch_dtype": "float32"}))


main()
