#!/usr/bin/env bash
# Covers: checks that can fail: each wrong program that is to be caught still differs from the right one
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
for fault in dev/test/faults/*.sed dev/test/*/faults/*.sed; do
  file=$(sed -n 's/^# File: *//p' "$fault")
  check "$(basename "$fault" .sed) changes $file" eval '! sed -E -f "$fault" "$file" | cmp -s - "$file"'
done
echo "$checks checks passed"
