#!/usr/bin/env bash
# Covers: dev/data/train_tokenizer trains a tokenizer.json on text and JSON lines, the same bytes each time, which prepare takes
# Timeout: 100
set -euo pipefail
cd "$(dirname "$0")"
"$PYTHON" -m pytest -q -p no:cacheprovider test_train_tokenizer.py
