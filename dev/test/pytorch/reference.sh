#!/usr/bin/env bash
# Covers: promise 1: the dumps' float64 run, AdamW and errors are proven, and the bf16 limits are fair and sharp
# Timeout: 900
set -euo pipefail
cd "$(dirname "$0")/../../.."
"$PYTHON" dev/reference/test_reference.py
"$PYTHON" dev/reference/test_limits.py
"$PYTHON" dev/reference/check_dump.py dev/reference/dumps/*
