#!/usr/bin/env bash
# Covers: scripts/report of two real runs, a hostile and a young one, in a browser without network: every number, what
# moves, nothing fetched, no complaint of the console, light, dark and on a phone
# Timeout: 300
#
# Pictures of the pages stay in build/test-logs/report/.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
run=(--steps 30 --val-every 10 --sample-every 10 --export off)
"$train" "${run[@]}" --out "$scratch/base" >"$scratch/out.txt" 2>&1 &
until grep -q '"step":5,' "$scratch/base/train.jsonl" 2>/dev/null; do sleep 0.1; done
check "a run under way" scripts/report "$scratch/base" -o "$scratch/live.html"
check "is said to be running" grep -q '<span class="live">running' "$scratch/live.html"
wait "$!"
check "a run that has ended" scripts/report "$scratch/base" -o "$scratch/ended.html"
check "is said to have ended" eval '! grep -q "<span class=\"live\">" "$scratch/ended.html" && grep -q "<td>ended</td>" "$scratch/ended.html"'
cp -r "$scratch/base" "$scratch/words" && sed -i 's/"tokenizer": "bytes"/"tokenizer": "0123456789abcdef"/' "$scratch/words/run.json"
check "runs of two tokenizers" scripts/report "$scratch/base" "$scratch/words" -o "$scratch/words.html"
check "  whose nats a token are not comparable, which is said" grep -q "their losses in nats a token are not comparable" "$scratch/words.html"
check "  and of one tokenizer nothing is said" not grep -q "not comparable" "$scratch/ended.html"
check "another run" "$train" "${run[@]}" --lr 1e-3 --out "$scratch/low-lr" >"$scratch/out.txt"
mkdir "$scratch/pages"
"$PYTHON" dev/test/watch/report_check.py "$scratch/pages" "$scratch/base" "$scratch/low-lr"
mkdir -p build/test-logs/report
cp "$scratch"/pages/*.png build/test-logs/report/
