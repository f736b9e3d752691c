#!/usr/bin/env bash
# Covers: conversations: tokens are those of the whole rendering, masks are those put together turn by turn
# Timeout: 300
set -euo pipefail
cd "$(dirname "$0")"
"$PYTHON" -m pytest -q -p no:cacheprovider test_chat.py
