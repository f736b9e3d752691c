#!/usr/bin/env bash
# Covers: chats: the renderings that the program's are compared with (test_chat_prompt) are jinja2's
# Timeout: 60
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
check "expected.json is what jinja2 makes of the templates" "$PYTHON" "$root/dev/test/chat_templates/make.py" --check
echo "$checks checks passed"
