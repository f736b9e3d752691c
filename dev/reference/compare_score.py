"""Compares what dev/test/score measured of an exported model with what PyTorch makes of the same files.

    python dev/reference/compare_score.py DIR ITEMS TEXT SEQ_LEN SCORE.json

The text of the items is built as lm-evaluation-harness' task hellaswag does (process_docs, _encode_pair) and as llm.c's
dev/data/hellaswag.py.  Exit code 1 beyond the limits.
"""

import json
import math
import re
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

# fp32: a log-likelihood of some dozen tokens, each off by some 1e-6.
LIMIT = 1e-4


def preprocess(text: str) -> str:
    text = text.strip().replace(" [title]", ". ")
    return re.sub("\\[.*?\\]", "", text).replace("  ", " ")


def lm_eval_pair(item: dict, ending: str, encode) -> tuple[list[int], list[int], int]:
    context = preprocess(item["activity_label"] + ": " + item["ctx_a"] + " " + item["ctx_b"].capitalize())
    ending = preprocess(ending)
    whole = encode(context + " " + ending, True)
    begin = len(encode(context.rstrip(), True))
    return whole[:begin], whole[begin:], len(ending)


def llmc_pair(item: dict, ending: str, encode) -> tuple[list[int], list[int], int]:
    return encode(item["ctx"], False), encode(" " + ending, False), len(ending)


def log_likelihood(model, context: list[int], ending: list[int], T: int) -> float:
    tokens = (context + ending)[-(T + 1):]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([tokens[:-1]])).logits[0]
    p = logits.double().log_softmax(-1)
    return sum(p[t - 1, tokens[t]].item() for t in range(len(tokens) - len(ending), len(tokens)))


def choices(model, encode, items: list[dict], pair, T: int) -> dict:
    result = {"log_likelihoods": [], "acc": 0, "acc_norm": 0, "acc_norm_tokens": 0}
    for item in items:
        pairs = [pair(item, ending, encode) for ending in item["endings"]]
        scores = [log_likelihood(model, context, ending, T) for context, ending, _ in pairs]
        result["log_likelihoods"].append(scores)
        for name, weights in (("acc", [1] * len(pairs)), ("acc_norm", [n for _, _, n in pairs]),
                              ("acc_norm_tokens", [len(ending) for _, ending, _ in pairs])):
            weighed = [s / w for s, w in zip(scores, weights)]
            result[name] += weighed.index(max(weighed)) == int(item["label"])
    return result


def held_out(model, ids: list[int], T: int, count: int = 16) -> tuple[float, int]:
    """Mean loss over windows as ValidationWindows places them, and how many bytes they predict (a byte a token)."""
    windows = max(1, len(ids) // T - 1)
    count = min(count, windows)
    nats = 0.0
    for i in range(count):
        start = i * windows // count * T
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[start:start + T]])).logits[0]
        nats += torch.nn.functional.cross_entropy(logits.double(), torch.tensor(ids[start + 1:start + T + 1]),
                                                  reduction="sum").item()
    return nats / (count * T), count * T


def main() -> None:
    folder, items_path, text_path, T, score_path = Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]), sys.argv[5]
    torch.set_num_threads(2)
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encode = lambda text, special: tokenizer(text, add_special_tokens=special).input_ids
    items = [json.loads(line) for line in Path(items_path).read_text().splitlines()]
    ours = json.loads(Path(score_path).read_text())
    passed = True

    loss, _ = held_out(model, list(Path(text_path).read_bytes()), T)
    difference = abs(loss - ours["held_out"]["nats"])
    bits = abs(ours["held_out"]["nats"] / math.log(2) - ours["held_out"]["bits_per_byte"])  # a byte a token here
    passed &= difference <= 1e-5 and bits <= 1e-12
    print(f"held-out loss {ours['held_out']['nats']:.6f}, PyTorch's off by {difference:.1e} (limit 1e-5); "
          f"bits a byte {ours['held_out']['bits_per_byte']:.6f}")
    for name, pair in (("lm-eval", lm_eval_pair), ("llm.c", llmc_pair)):
        theirs = choices(model, encode, items, pair, T)
        worst = max(abs(a - b) for x, y in zip(ours[name]["log_likelihoods"], theirs["log_likelihoods"])
                    for a, b in zip(x, y))
        accuracies = [key for key in theirs if key.startswith("acc") and theirs[key] != ours[name][key]]
        passed &= worst <= LIMIT and not accuracies and len(ours[name]["log_likelihoods"]) == len(items)
        print(f"{name}: {len(items)} items, log-likelihoods differ by at most {worst:.1e} (limit {LIMIT:.0e}); right: "
              f"{[ours[name][key] for key in ('acc', 'acc_norm', 'acc_norm_tokens')]}"
              + (f", PyTorch's differ: {accuracies}" if accuracies else ", as PyTorch's"))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
