#!/usr/bin/env bash
# Covers: conversations: rows of ShareGPT and prompts with completions are those of messages; what prepare prints of them
# Timeout: 300
set -euo pipefail
cd "$(dirname "$0")"
"$PYTHON" -m pytest -q -p no:cacheprovider test_chat_rows.py
