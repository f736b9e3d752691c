#!/usr/bin/env bash
# Covers: bad input is refused with file and place, and leaves nothing under a final name
# Timeout: 300
set -euo pipefail
cd "$(dirname "$0")"
"$PYTHON" -m pytest -q -p no:cacheprovider test_bad_input.py
