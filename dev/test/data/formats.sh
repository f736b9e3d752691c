#!/usr/bin/env bash
# Covers: every source format, delimiter and split gives the shards that are written independently from llm.c's layout, with any number of processes; long texts are cut where that changes no token
# Timeout: 300
set -euo pipefail
cd "$(dirname "$0")"
"$PYTHON" -m pytest -q -p no:cacheprovider test_formats.py
