"""Compares what dev/test/score measured of an exported model with what PyTorch makes of the same files.

    python dev/reference/compare_score.py DIR ITEMS TEXT SEQ_LEN SCORE.json       (TEXT: bytes, or a shard)

The text of the items is built as lm-evaluation-harness' task hellaswag does (process_docs, _encode_pair) and as llm.c's
dev/data/hellaswag.py.  Exit code 1 beyond the limits.
"""

import json
import math
import re
import sys
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import disable_progress_bar

def limit_of(model) -> float:
    """fp32: a log-likelihood of some dozen tokens, each off by some 1e-6, and by more in a model of many layers."""
    return max(1e-4, 1e-5 * model.config.num_hidden_layers)


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


def held_out(model, ids: list[int], T: int, count: int = 16) -> tuple[float, list[tuple[int, int]]]:
    """Mean loss over windows as ValidationWindows places them, and each token that they predict after the one before."""
    windows = (len(ids) - 1 + T - 1) // T  # side by side, the last may be shorter
    count = min(count, windows)
    nats, predicted = 0.0, []
    for i in range(count):
        start = i * windows // count * T
        labels = ids[start + 1:start + T + 1]
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids[start:start + len(labels)]])).logits[0]
        nats += torch.nn.functional.cross_entropy(logits.double(), torch.tensor(labels), reduction="sum").item()
        predicted += zip(ids[start:], labels)
    return nats / len(predicted), predicted


def tokens_of(path: Path) -> list[int]:
    """A shard of 16-bit tokens, or a text's bytes."""
    return np.fromfile(path, "<u2", offset=1024).tolist() if path.suffix == ".bin" else list(path.read_bytes())


def bytes_of(file: Tokenizer, predicted: list[tuple[int, int]]) -> int:
    """Bytes of UTF-8 that predicted tokens stand for: by the tokenizer's decoder, token by token, special ones left out,
    and the space that the tokenizer puts before a text."""
    rules = json.loads(file.to_str())
    special = {token["id"] for token in rules["added_tokens"]}
    byte_level = "ByteLevel" in json.dumps(rules["decoder"])  # there a character of the vocabulary is a byte
    bytes_ = {}
    for token in {label for _, label in predicted}:
        spelled = file.id_to_token(token)
        one = re.fullmatch("<0x[0-9A-F]{2}>", spelled)
        bytes_[token] = (0 if token in special else len(spelled) if byte_level
                         else 1 if one else len(spelled.replace("▁", " ").encode()))
    puts_space = file.encode("x", add_special_tokens=False).tokens[0].startswith("▁")
    begins = [puts_space and before in special and file.id_to_token(label).startswith("▁") for before, label in predicted]
    return sum(bytes_[label] for _, label in predicted) - sum(begins)


def same_ids(folder: Path, tokenizer, file: Tokenizer, texts: list[str]) -> bool:
    """AutoTokenizer's class must not bring rules of its own: its ids are those of the file."""
    different = [text for text in texts if tokenizer(text).input_ids != file.encode(text).ids]
    print(f"{type(tokenizer).__name__} and {folder.name}/tokenizer.json: {len(different)} of {len(texts)} texts differ"
          + (f", for instance {different[0]!r}" if different else ""))
    return not different


def main() -> None:
    folder, items_path, text_path, T, score_path = Path(sys.argv[1]), *sys.argv[2:4], int(sys.argv[4]), sys.argv[5]
    torch.set_num_threads(2)
    disable_progress_bar()
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    encode = lambda text, special: tokenizer(text, add_special_tokens=special).input_ids
    items = [json.loads(line) for line in Path(items_path).read_text().splitlines()]
    ours = json.loads(Path(score_path).read_text())
    file = Tokenizer.from_file(str(folder / "tokenizer.json"))
    passed = same_ids(folder, tokenizer, file, [text for item in items for text in [item["ctx"], *item["endings"]]])

    loss, predicted = held_out(model, tokens_of(Path(text_path)), T)
    difference = abs(loss - ours["held_out"]["nats"])
    bits = ours["held_out"]["nats"] / math.log(2) * len(predicted) / bytes_of(file, predicted)
    passed &= difference <= 1e-5 and abs(bits - ours["held_out"]["bits_per_byte"]) <= 1e-12
    print(f"held-out loss {ours['held_out']['nats']:.6f}, PyTorch's off by {difference:.1e} (limit 1e-5); "
          f"bits a byte {ours['held_out']['bits_per_byte']:.6f}, by its tokenizer {bits:.6f}")
    limit = limit_of(model)
    for name, pair in (("lm-eval", lm_eval_pair), ("llm.c", llmc_pair)):
        theirs = choices(model, encode, items, pair, T)
        worst = max(abs(a - b) for x, y in zip(ours[name]["log_likelihoods"], theirs["log_likelihoods"])
                    for a, b in zip(x, y))
        accuracies = [key for key in theirs if key.startswith("acc") and theirs[key] != ours[name][key]]
        passed &= worst <= limit and not accuracies and len(ours[name]["log_likelihoods"]) == len(items)
        print(f"{name}: {len(items)} items, log-likelihoods differ by at most {worst:.1e} (limit {limit:.0e}); right: "
              f"{[ours[name][key] for key in ('acc', 'acc_norm', 'acc_norm_tokens')]}"
              + (f", PyTorch's differ: {accuracies}" if accuracies else ", as PyTorch's"))
    sys.exit(not passed)


if __name__ == "__main__":
    main()
