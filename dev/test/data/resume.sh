#!/usr/bin/env bash
# Covers: promise 4, for data: killed at any moment, the same command goes on and leaves the bytes of an unkilled run; full disks
# Timeout: 400
set -euo pipefail
cd "$(dirname "$0")"
"$PYTHON" -m pytest -q -p no:cacheprovider test_resume.py
