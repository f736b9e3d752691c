#!/usr/bin/env bash
# Covers: checks that can fail: each wrong program that is to be caught still differs from the right one, and what tables
# of mutations and of survivors name still stands in the files
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
for fault in dev/test/faults/*.sed dev/test/*/faults/*.sed; do
  file=$(sed -n 's/^# File: *//p' "$fault")
  check "$(basename "$fault" .sed) changes $file" eval '! sed -E -f "$fault" "$file" | cmp -s - "$file"'
done
for table in dev/test/mutation_*; do
  check "the texts that $(basename "$table") replaces stand in their files" "$table" texts
done
while IFS=$'\t' read -r file line _; do
  check "$file says what $(basename dev/test/survivors.txt) excuses: $line" grep -qF -- "$line" "$file"
done < <(grep -v '^#' dev/test/survivors.txt)
echo "$checks checks passed"
