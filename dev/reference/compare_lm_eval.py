"""Runs lm-evaluation-harness on an export, and compares with what dev/test/score measured of it.

    python dev/reference/compare_lm_eval.py DIR ITEMS SCORE.json

The task is the harness' hellaswag, but for where its items come from.  Exit code 1 beyond the limits.
"""

import functools
import json
import os
import sys
from pathlib import Path

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "false"}

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks.hellaswag.utils import process_docs

from compare_score import limit_of

TASK = {
    "task": "items", "dataset_path": "json", "output_type": "multiple_choice", "validation_split": "validation",
    "process_docs": process_docs, "doc_to_text": "{{query}}", "doc_to_target": "{{label}}", "doc_to_choice": "choices",
    "metric_list": [{"metric": metric, "aggregation": "mean", "higher_is_better": True} for metric in ("acc", "acc_norm")]}


def main() -> None:
    folder, items, score = sys.argv[1:]
    torch.set_num_threads(2)
    # A tokenizer of bytes has no token that begins a text; the harness wants one, for empty contexts.
    config = json.loads((Path(folder) / "tokenizer_config.json").read_text())
    prefix = {} if {"bos_token", "eos_token"} & config.keys() else {"prefix_token_id": 10}
    model = HFLM(pretrained=folder, device="cpu", dtype="float32", batch_size=8, **prefix)
    model.loglikelihood = functools.partial(model.loglikelihood, disable_tqdm=True)
    task = TASK | {"dataset_kwargs": {"data_files": {"validation": items}}}
    measured = lm_eval.simple_evaluate(model=model, tasks=[task], bootstrap_iters=0)
    theirs = measured["results"]["items"]
    ours = json.loads(Path(score).read_text())["lm-eval"]
    count = len(ours["log_likelihoods"])
    passed = measured["n-samples"]["items"]["effective"] == count
    for metric in ("acc", "acc_norm"):
        right = round(theirs[f"{metric},none"] * count)
        print(f"{metric}: {ours[metric]} of {count} right, lm-eval's {right}")
        passed &= right == ours[metric]
    samples = sorted(measured["samples"]["items"], key=lambda sample: sample["doc_id"])
    worst = max(abs(float(response[0]) - one) for sample, of_item in zip(samples, ours["log_likelihoods"], strict=True)
                for response, one in zip(sample["filtered_resps"], of_item, strict=True))
    limit = limit_of(model.model)
    print(f"lm_eval {lm_eval.__version__}: log-likelihoods differ by at most {worst:.1e} (limit {limit:.0e})")
    sys.exit(not (passed and worst <= limit))


if __name__ == "__main__":
    main()
