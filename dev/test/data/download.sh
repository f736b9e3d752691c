#!/usr/bin/env bash
# Covers: downloads survive cuts, servers that ignore ranges and files that change, and are verified; a hub's data sets
# Timeout: 300
set -euo pipefail
cd "$(dirname "$0")"
"$PYTHON" -m pytest -q -p no:cacheprovider test_download.py
