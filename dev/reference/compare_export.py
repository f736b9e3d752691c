"""Compares the logits of an exported Hugging Face directory with those of the program that exported it.

    python dev/reference/compare_export.py DIR [--logits FILE]

FILE holds `input_ids` int32 (B,T) and `logits` fp32 (B,T,V), which the program computed in fp32 from the exported
weights.  The directory is read by AutoModelForCausalLM.from_pretrained, as anybody would.  Exit code 1 beyond the
limits.
"""

import argparse
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM
from transformers.utils.logging import disable_progress_bar

# Two right fp32 programs add in different orders.  PyTorch's own fp32 logits differ from float64 by 4e-7 to 1e-6 on the
# parity dumps, which allow 1e-5; that leaves room for deeper models.  A divergence is half the
# variance of the logits' differences: about 1e-13 for a right export; a wrong q/k permutation, whose logits still look
# plausible, gave 7e-7 to 5e-6.
RELATIVE_LIMIT = 1e-5
KL_LIMIT = 1e-9


def hugging_face_logits(folder: Path, input_ids: Tensor) -> Tensor:
    model, report = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    wrong = {kind: names for kind, names in report.items() if names}
    if wrong:  # from_pretrained only warns, and fills the gaps with random weights
        sys.exit(f"{folder}: not read as exported: {wrong}")
    with torch.no_grad():
        return model.eval()(input_ids=input_ids.long(), use_cache=False).logits


def main() -> None:
    parser = argparse.ArgumentParser(description="Compares an export's logits with the exporting program's.")
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--logits", type=Path, metavar="FILE", help="default: DIR/logits.safetensors")
    args = parser.parse_args()
    torch.set_num_threads(2)
    disable_progress_bar()

    path = args.logits or args.folder / "logits.safetensors"
    tensors = load_file(path)
    if not tensors.keys() >= {"input_ids", "logits"}:
        sys.exit(f"{path}: holds {sorted(tensors)}, expected input_ids and logits")
    ours, theirs = tensors["logits"], hugging_face_logits(args.folder, tensors["input_ids"])
    if ours.shape != theirs.shape or ours.dtype != torch.float32:
        sys.exit(f"{path}: logits are {ours.dtype} {tuple(ours.shape)}, expected torch.float32 {tuple(theirs.shape)}")

    ours, theirs = ours.double(), theirs.double()
    relative = ((ours - theirs).norm() / theirs.norm()).item()
    largest = (ours - theirs).abs().max().item()
    log_p, log_q = theirs.log_softmax(-1), ours.log_softmax(-1)
    kl = (log_p.exp() * (log_p - log_q)).sum(-1).mean().item()
    passed = relative <= RELATIVE_LIMIT and kl <= KL_LIMIT  # false for NaN
    print(f"relative L2 error {relative:.1e} (limit {RELATIVE_LIMIT:.0e}), largest difference {largest:.1e}, "
          f"KL divergence {kl:.1e} nats (limit {KL_LIMIT:.0e}): {'ok' if passed else 'FAILED'}")
    sys.exit(not passed)


if __name__ == "__main__":
    main()
