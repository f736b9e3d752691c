#!/usr/bin/env bash
# Covers: scripts/report of two real runs and of a hostile one, in a browser without network: every number, what moves,
# nothing fetched, no complaint of the console, light, dark and on a phone
# Timeout: 300
#
# Pictures of the pages stay in build/test-logs/report/.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$root"
for name in base low-lr; do
  lr=$([ "$name" = base ] || echo --lr 1e-3)
  # shellcheck disable=SC2086  # words
  "$train" --steps 30 $lr --val-every 10 --sample-every 10 --export off --out "$scratch/$name" >"$scratch/out.txt" 2>&1 ||
    { cat "$scratch/out.txt" && fail "training"; }
done
mkdir "$scratch/pages"
"$PYTHON" dev/test/watch/report_check.py "$scratch/pages" "$scratch/base" "$scratch/low-lr"
mkdir -p build/test-logs/report
cp "$scratch"/pages/*.png build/test-logs/report/
