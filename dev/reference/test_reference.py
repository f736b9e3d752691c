"""Proves the float64 run, the optimizer, the committed dumps and their check.  Prints what it measured.

    python dev/reference/test_reference.py
"""

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, PreTrainedConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

import make_dump
from check_dump import check_dump
from make_dump import RECIPE, SHAPES, AdamW, Rotary64, Tensors

DUMPS = Path(__file__).parent / "dumps"


def check(passed: bool, what: str) -> None:
    print(f"{'ok  ' if passed else 'FAIL'} {what}", flush=True)
    if not passed:
        raise SystemExit(1)


def setting(name: str) -> tuple[PreTrainedConfig, Tensors, Tensors]:
    return make_dump.setting(SHAPES[name])[:3]


def gradient_error(name: str) -> tuple[float, str]:
    """The largest relative difference, over all weights, of a gradient along a random direction from a central
    difference of the loss."""
    config, weights, batch = setting(name)
    model = make_dump.build_model(config, weights, torch.float64, "sdpa")
    generator = torch.Generator().manual_seed(0)

    def loss() -> torch.Tensor:
        logits = model(**make_dump.inputs_of(config, batch, 0, torch.float64)).logits
        return make_dump.mean_loss(logits, batch["labels"][0]) + make_dump.mean_z_loss(
            logits, batch["labels"][0], SHAPES[name].z_loss)

    step, worst = 1e-4, (0.0, "")
    with sdpa_kernel(SDPBackend.MATH):
        loss().backward()
        for weight, p in model.named_parameters():
            direction = torch.randn(p.shape, generator=generator, dtype=p.dtype)
            if "embed_tokens" in weight and config.pad_token_id is not None:
                direction[config.pad_token_id] = 0  # a row that is looked up without a gradient: see test_padding
            direction /= direction.norm()
            exact = (p.grad * direction).sum().item()
            ends = []
            with torch.no_grad():
                for sign in (1, -2):  # one step forward, then one step back from the start
                    p += sign * step * direction
                    ends.append(loss().item())
                p += step * direction
            difference = (ends[0] - ends[1]) / (2 * step)
            worst = max(worst, (abs(difference - exact) / p.grad.norm().item(), weight))
    return worst


def test_gradients() -> None:
    """A central difference with step h errs by about h^2 = 1e-8 and by the loss's rounding / h: 1e-12 in float64, but
    1e-3 if any part of the run is in fp32."""
    for name in SHAPES:
        error, weight = gradient_error(name)
        check(error < 1e-6, f"float64 gradients of {name:15} against finite differences: {error:.1e} ({weight})")
    with mock.patch.object(make_dump, "Norm64", lambda norm: norm):
        error, _ = gradient_error("mha")
    check(error > 1e-5, f"     with Hugging Face's norm, which is fp32 in a .double() model: {error:.1e}, seen")


def test_padding() -> None:
    """The row of pad_token_id gets no gradient of a lookup; a tied one still gets the head's."""
    for name, shape in SHAPES.items():
        pad = shape.keys.get("pad_token_id")
        if pad is None:
            continue
        config, weights, batch = setting(name)
        grads = []
        for untie in (True, False):
            model = make_dump.build_model(config, weights, torch.float64, "sdpa")
            if untie:
                model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
            loss = make_dump.mean_loss(model(**make_dump.inputs_of(config, batch, 0, torch.float64)).logits,
                                       batch["labels"][0])
            loss.backward()
            grads.append((model.model.embed_tokens.weight.grad[pad], model.lm_head.weight.grad[pad]))
        (lookup, head), (both, _) = grads
        count = int((batch["input_ids"][0] == pad).sum())
        check(count > 2 and not lookup.any() and bool(head.any()) and (not shape.tied or torch.allclose(both, head)),
              f"{name}: {count} pad tokens, whose lookup has no gradient{', but the head' if shape.tied else ''}")


def test_masks() -> None:
    """Hugging Face makes the same masks from the window, and from positions that begin again."""
    for name, shape in SHAPES.items():
        config, weights, batch = setting(name)
        inputs = make_dump.inputs_of(config, batch, 0, torch.float32)
        if "attention_mask" not in inputs:
            continue
        model = make_dump.build_model(config, weights, torch.float32, "eager")
        with torch.no_grad():
            ours = model(**inputs).logits
            theirs = model(**{key: value for key, value in inputs.items() if key != "attention_mask"}).logits
            config.sliding_window = shape.T  # all: Ministral's class must have one, also where no layer has a window
            plain = make_dump.build_model(config, weights, torch.float32, "eager")(input_ids=inputs["input_ids"]).logits
        differs = torch.equal(plain, ours) == (shape.keys.get("sliding_window") == shape.T)
        check(torch.equal(ours, theirs) and differs, f"masks of {name:15} are Hugging Face's, to the bit")


def test_rope_tables() -> None:
    """Hugging Face rounds the frequency and the angle to fp32: 2^-24 each, a few operations, times the angle."""
    types = set()
    for name, shape in SHAPES.items():
        config, weights, _ = setting(name)
        model = make_dump.build_model(config, weights, torch.float32, "eager")
        x, positions = torch.zeros(1), torch.arange(shape.T)[None]
        mine = Rotary64(config)
        pairs = zip(mine(x, positions), model.model.rotary_emb(x, positions))
        error = max((a - b).abs().max().item() for a, b in pairs)
        check(error < 4 * shape.T * 2**-24, f"RoPE tables of {name:15} against Hugging Face's fp32: {error:.1e}")
        rope = config.rope_parameters
        types.add(rope["rope_type"])
        if rope["rope_type"] == "default":
            continue
        theirs, factor = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config)
        error = (mine.inv_freq / theirs.double() - 1).abs().max().item()
        slowed = rope["rope_theta"] ** (np.arange(0, make_dump.head_dim(config), 2) / make_dump.head_dim(config)) * (
            mine.inv_freq.numpy())  # 1 of a frequency that is kept, 1 / factor of one that is slowed
        bands = [int(part.sum()) for part in (slowed > 1 - 1e-9, slowed < 1 / rope["factor"] + 1e-9)]
        bands.insert(1, len(slowed) - sum(bands))
        enough = (rope["rope_type"] == "linear" or min(bands) > 0) and shape.T > rope.get(
            "original_max_position_embeddings", 0)
        check(error < 4 * 2**-24 and abs(mine.attention_factor - factor) < 1e-12 and enough,
              f"     {rope['rope_type']}: frequencies kept, blended, slowed: {bands}, off by {error:.1e}; cosines and "
              f"sines x {factor:.4f}")
    check(types == {"default", "linear", "llama3", "yarn"}, f"types of RoPE: {sorted(types)}")


def test_adamw() -> None:
    """Against torch.optim.AdamW with torch's clipping, which divides by norm + 1e-6: undone here by the clip."""
    generator = torch.Generator().manual_seed(0)
    weights = {"matrix": torch.randn(5, 7, generator=generator), "vector": torch.randn(9, generator=generator)}
    recipe = RECIPE | {"grad_clip": 1.0}
    ours = AdamW(weights, recipe, torch.float64)
    theirs = {name: torch.nn.Parameter(w.double()) for name, w in weights.items()}
    optimizer = torch.optim.AdamW(
        [{"params": [theirs["matrix"]], "weight_decay": recipe["weight_decay"]},
         {"params": [theirs["vector"]], "weight_decay": 0.0}],
        lr=recipe["learning_rate"], betas=(recipe["beta1"], recipe["beta2"]), eps=recipe["eps"])
    norms = []
    for step in range(10):
        scale = 0.02 if step % 2 else 2.0  # clipped and not
        grads = {n: scale * torch.randn(w.shape, generator=generator, dtype=torch.float64) for n, w in weights.items()}
        for name, p in theirs.items():
            p.grad = grads[name].clone()
        norm = ours.update(grads).item()
        norms.append(norm)
        torch.nn.utils.clip_grad_norm_(theirs.values(), recipe["grad_clip"] * (norm + 1e-6) / norm)
        optimizer.step()
    error = max((ours.weights[name] - p).abs().max().item() for name, p in theirs.items())
    check(min(norms) < 1 < max(norms) and error < 1e-14, f"AdamW and clipping against torch.optim.AdamW: {error:.1e}")


def test_committed() -> None:
    """Weights and tokens come from numpy: the same bytes on every machine.  The float64 run may round
    otherwise, the fp32 it is stored in errs by 2^-24 = 6e-8 at most."""
    for name, shape in SHAPES.items():
        folder = DUMPS / name
        config, weights, batch, recipe, _ = make_dump.setting(shape)
        same = all(torch.equal(load_file(folder / f"{stem}.safetensors")[key], tensor)
                   for stem, tensors in (("model", weights), ("batch", batch)) for key, tensor in tensors.items())
        committed = load_file(folder / "expected.safetensors")
        run = make_dump.expected_run(config, weights, batch, recipe)
        error = max((committed[key] - run[key]).norm().item() / run[key].norm().item() for key in run)
        read_back = AutoConfig.from_pretrained(folder)
        same &= all(getattr(read_back, key, None) == getattr(config, key, None) for key in
                    ("model_type", "hidden_size", "head_dim", "num_key_value_heads", "rope_parameters", "pad_token_id",
                     "tie_word_embeddings", "sliding_window", "layer_types"))
        entropy = make_dump.attention_entropy(config, weights, batch["input_ids"][0])
        # With a norm of q and k, scores have a standard deviation of 1.
        check(same and error < 1e-7 and entropy < (0.9 if shape.family in ("qwen3", "olmo2") else 0.7),
              f"dump {name:15} is what the script writes: {error:.1e}; attention's entropy {entropy:.2f} of uniform")
    ratios = {shape.NH // shape.NKV for shape in SHAPES.values()}
    check({1, 4, 7} <= ratios, f"query heads to a key/value head: {sorted(ratios)}")


def test_same_bytes(scratch: Path) -> None:
    for run in ("first", "second"):
        make_dump.write_dump(scratch / run, SHAPES["older_config"])
    same = all(file.read_bytes() == (scratch / "second" / file.name).read_bytes()
               for file in (scratch / "first").iterdir())
    check(same, "a dump written twice is the same, byte for byte")


def tensors_edit(file: str, edit: Callable[[Tensors], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        tensors = load_file(folder / file)
        edit(tensors)
        save_file(tensors, folder / file)
    return apply


def json_edit(file: str, edit: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        value = json.loads((folder / file).read_text())
        edit(value)
        (folder / file).write_text(json.dumps(value))
    return apply


def test_broken_dumps(scratch: Path) -> None:
    """Each break, and the words that must report it."""
    norm, embedding = "model.layers.0.input_layernorm.weight", "model.embed_tokens.weight"
    batch, expected, model = "batch.safetensors", "expected.safetensors", "model.safetensors"
    breaks: list[tuple[str, Callable[[Path], None]]] = [
        ("recipe.json is missing", lambda d: (d / "recipe.json").unlink()),
        ("config.json: not JSON", lambda d: (d / "config.json").write_text("{")),
        ("hidden_size: missing", json_edit("config.json", lambda c: c.pop("hidden_size"))),
        ("model_type is 'gpt2'", json_edit("config.json", lambda c: c.update(model_type="gpt2"))),
        ("q_proj.bias is missing", json_edit("config.json", lambda c: c.update(model_type="qwen2"))),
        ("k_norm.weight is missing", json_edit("config.json", lambda c: c.update(model_type="qwen3"))),
        ("input_layernorm.weight does not belong", json_edit("config.json", lambda c: c.update(model_type="olmo2"))),
        ("not a multiple of", json_edit("config.json", lambda c: c.update(num_key_value_heads=2))),
        ("neither rope_parameters nor", json_edit("config.json", lambda c: c.pop("rope_parameters"))),
        ("lm_head.weight does not belong", json_edit("config.json", lambda c: c.update(tie_word_embeddings=True))),
        ("cut short", lambda d: (d / model).write_bytes((d / model).read_bytes()[:-4])),
        ("cut short", lambda d: (d / batch).write_bytes(b"tokens")),
        (f"{norm} is missing", tensors_edit(model, lambda t: t.pop(norm))),
        (f"{norm} is BF16", tensors_edit(model, lambda t: t.update({norm: t[norm].bfloat16()}))),
        (f"{embedding} has shape (48, 64)",
         tensors_edit(model, lambda t: t.update({embedding: t[embedding].T.contiguous()}))),
        (f"{norm} holds nan", tensors_edit(model, lambda t: t[norm].fill_(float("nan")))),
        ("input_ids has shape (12, 37)",
         tensors_edit(batch, lambda t: t.update(input_ids=t["input_ids"][:, 0].contiguous()))),
        ("labels has shape", tensors_edit(batch, lambda t: t.update(labels=t["labels"][:, :1].contiguous()))),
        ("labels is I64", tensors_edit(batch, lambda t: t.update(labels=t["labels"].long()))),
        ("the vocabulary has 64", tensors_edit(batch, lambda t: t["input_ids"][0, 0, 0].fill_(64))),
        ("labels run from -1", tensors_edit(batch, lambda t: t["labels"][0, 0, 0].fill_(-1))),
        ("every label of step 3", tensors_edit(batch, lambda t: t["labels"][3].fill_(-100))),
        ("already be shifted", tensors_edit(batch, lambda t: t.update(labels=t["input_ids"].clone()))),
        ("position_ids must start at 0", tensors_edit(batch, lambda t: t.update(position_ids=t["labels"].abs()))),
        ("beta2 is missing", json_edit("recipe.json", lambda r: r.pop("beta2"))),
        ("momentum does not belong", json_edit("recipe.json", lambda r: r.update(momentum=0.9))),
        ("below 1e-5", json_edit("recipe.json", lambda r: r.update(eps=1e-8))),
        ("with 4 steps", json_edit("recipe.json", lambda r: r.update(steps=4))),
        ("loss of step 0", tensors_edit(expected, lambda t: t["loss"].mul_(1.0001))),
        ("loss of step 0", tensors_edit(batch, lambda t: t.update(labels=t["labels"].roll(1, -1)))),
        ("before clipping", tensors_edit(expected, lambda t: [g.div_(3) for n, g in t.items() if "grad." in n])),
        ("grad_norm has shape", tensors_edit(expected, lambda t: t.update(grad_norm=t["grad_norm"][:1].clone()))),
        ("minus the initial ones", tensors_edit(expected, lambda t: t[f"update.{norm}"].add_(1))),
        ("bf16 is missing", json_edit("pytorch_error.json", lambda e: e.pop("bf16"))),
        ("bf16: loss is missing", json_edit("pytorch_error.json", lambda e: e["bf16"].pop("loss"))),
        ("bf16_seeds: loss is missing", json_edit("pytorch_error.json", lambda e: e["bf16_seeds"].pop("loss"))),
        ("expected a list of numbers", json_edit("pytorch_error.json", lambda e: e["bf16_seeds"].update(loss=[]))),
        ("but the dump's own error is", json_edit("pytorch_error.json", lambda e: e["bf16_seeds"]["loss"].reverse())),
        ("fp32_seeds does not belong", json_edit("pytorch_error.json", lambda e: e.update(fp32_seeds={}))),
        ("that is no rounding", json_edit("pytorch_error.json", lambda e: e["fp32"].update(loss=0.1))),
    ]
    operands, a = "operands.safetensors", "layers.0.down.wgrad.a"
    fp8_breaks: list[tuple[str, Callable[[Path], None]]] = [
        ("expected an object", json_edit("recipe.json", lambda r: r.update(quantization="tensorwise"))),
        ("tensorwise is missing", json_edit("pytorch_error.json", lambda e: e.pop("tensorwise"))),
        ("operands.safetensors is missing", lambda d: (d / operands).unlink()),
        (f"{a} is missing", tensors_edit(operands, lambda t: t.pop(a))),
        (f"{a} is F32", tensors_edit(operands, lambda t: t.update({a: t[a].float()}))),
        (f"{a} has shape (37, 40)", tensors_edit(operands, lambda t: t.update({a: t[a].t().contiguous()}))),
        ("dgrad.scale_b is missing", tensors_edit(operands, lambda t: t.pop("layers.0.qkv.dgrad.scale_b"))),
        ("scale_b does not belong", tensors_edit(operands, lambda t: t.update({a: t[a].float().bfloat16(), (
            b := "layers.0.down.wgrad.b"): t[b].float().bfloat16()}))),
        ("layers.0.qkv.dy is missing", tensors_edit(operands, lambda t: t.pop("layers.0.qkv.dy"))),
    ]
    z_loss_breaks: list[tuple[str, Callable[[Path], None]]] = [
        ("z_loss is '0.02'", json_edit("recipe.json", lambda r: r.update(z_loss="0.02"))),
        ("z_loss does not belong", json_edit("recipe.json", lambda r: r.pop("z_loss"))),
        ("z_loss is missing", tensors_edit(expected, lambda t: t.pop("z_loss"))),
        ("z_loss of step 0", tensors_edit(expected, lambda t: t["z_loss"].mul_(1.0001))),
    ]
    folder = scratch / "broken"
    of_dumps = [("mha", breaks), ("fp8_tensorwise", fp8_breaks), ("z_loss", z_loss_breaks)]
    for dump, words, apply in [(dump, *each) for dump, of_dump in of_dumps for each in of_dump]:
        shutil.copytree(DUMPS / dump, folder, dirs_exist_ok=False)
        apply(folder)
        problems = check_dump(folder)
        check(any(words in problem for problem in problems), f"broken dump: {problems[0] if problems else 'accepted'}")
        shutil.rmtree(folder)
    sound = [name for name in SHAPES if check_dump(DUMPS / name)]
    check(not sound, f"all {len(SHAPES)} committed dumps pass the check")


def main() -> None:
    torch.set_num_threads(1)
    test_gradients()
    test_padding()
    test_masks()
    test_rope_tables()
    test_adamw()
    test_committed()
    with tempfile.TemporaryDirectory() as scratch:
        test_same_bytes(Path(scratch))
        test_broken_dumps(Path(scratch))


if __name__ == "__main__":
    main()
