"""The optimizers of a dump: AdamW, and PyTorch's Muon for the blocks' matrices."""

import functools
import inspect
import math
from collections.abc import Callable, Iterable

import torch
import torch.optim._muon as torch_muon
from torch import Tensor

Tensors = dict[str, Tensor]


def global_norm(tensors: Iterable[Tensor]) -> Tensor:
    return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(t) for t in tensors]))


class AdamW:
    """Weights and moments in `dtype`.  Decay on matrices only.  The clip factor is clip/norm, with nothing added.  With `muon` in the
    recipe, PyTorch's Muon updates the blocks' matrices."""

    nesterov = True

    def __init__(self, weights: Tensors, recipe: dict, dtype: torch.dtype,
                 products: torch.dtype | None = None) -> None:
        """`products`: the type in which the model computes; by default `dtype`."""
        self.recipe, self.products = recipe, products or dtype
        self.weights = {name: w.to(dtype, copy=True) for name, w in weights.items()}
        self.m = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.v = {name: torch.zeros_like(w) for name, w in self.weights.items()}
        self.step = 0

    def decays(self, w: Tensor) -> bool:
        return w.dim() == 2

    def update(self, grads: Tensors) -> Tensor:
        """One step; returns the gradients' norm before clipping."""
        r = self.recipe
        self.step += 1
        norm = global_norm(grads.values())
        factor = torch.clamp(r["grad_clip"] / norm, max=1)
        bias1, bias2 = 1 - r["beta1"] ** self.step, 1 - r["beta2"] ** self.step
        for name, w in self.weights.items():
            g, m, v = grads[name] * factor, self.m[name], self.v[name]
            if "muon" in r and is_block_matrix(name, w):
                self.update_by_muon(w, g, m)
                continue
            m.mul_(r["beta1"]).add_(g, alpha=1 - r["beta1"])
            v.mul_(r["beta2"]).addcmul_(g, g, value=1 - r["beta2"])
            if self.decays(w):
                w.mul_(1 - r["learning_rate"] * r["weight_decay"])
            w.addcdiv_(m, v.sqrt().div_(math.sqrt(bias2)).add_(r["eps"]), value=-r["learning_rate"] / bias1)
        return norm

    def update_by_muon(self, w: Tensor, g: Tensor, m: Tensor) -> None:
        """PyTorch's own code, as shipped if products are bf16, else without its cast to bf16."""
        r = self.recipe["muon"]
        step = torch_muon._single_tensor_muon if self.products == torch.bfloat16 else muon_without_cast()
        step([w], [g], [m], lr=r["learning_rate"], weight_decay=r["weight_decay"], momentum=r["momentum"],
             nesterov=self.nesterov, ns_coefficients=(torch_muon.DEFAULT_A, torch_muon.DEFAULT_B, torch_muon.DEFAULT_C), ns_steps=5,
             eps=torch_muon.EPS, adjust_lr_fn={"match-rms": "match_rms_adamw", "original": "original"}[r["scale"]],
             has_complex=False)


def is_block_matrix(name: str, w: Tensor) -> bool:
    return w.dim() == 2 and ".layers." in name


@functools.cache
def muon_without_cast() -> Callable[..., None]:
    """torch.optim's _single_tensor_muon, which iterates in the type of the gradient."""
    source = inspect.getsource(torch_muon)
    exact = source.replace("grad.to(dtype=torch.bfloat16, copy=True)", "grad.clone()")
    assert exact != source, "torch.optim._muon has another cast to bf16"
    namespace = {"__name__": "muon_without_cast", "__package__": "torch.optim"}
    exec(compile(exact, "muon_without_cast", "exec"), namespace)
    return namespace["_single_tensor_muon"]
