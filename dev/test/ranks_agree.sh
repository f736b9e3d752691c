#!/usr/bin/env bash
# Covers: promise 2: 2 and 4 data ranks give the losses of 1 rank at the same global batch
# Covers: promise 5: k micro-batches give the losses of one batch k times as large
# Timeout: 300
# Alone: its ranks take all cores
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"

# A short steep run: 20 steps in which the loss falls by more than 1 nat.
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --layers 2 --steps 20 --global-batch 8 --seq-len 64 --lr 6e-3 --warmup-steps 3 --val-every 0 \
    --sample-every 0 --export off --out "$scratch/$1" "${@:3}" >"$scratch/$1.txt" 2>&1 || {
    cat "$scratch/$1.txt"
    fail "the run $1"
  }
  losses "$scratch/$1/train.jsonl" >"$scratch/$1.losses"
}

# agree A B: the first loss to rounding, all within 1e-5 relative: the order of additions differs, and 20 steps of a
# falling loss amplify that difference.
agree() {
  paste -d' ' "$scratch/$1.losses" "$scratch/$2.losses" | awk -v a="$1" -v b="$2" '
    { d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > worst) { worst = d; at = $1 }
      if (NR == 1) { first = d; start = $2 } last = $2; n = NR }
    END { printf "     %s against %s: %d losses, first differs by %.1e, worst by %.1e (step %d), loss %.3f to %.3f\n",
            a, b, n, first, worst, at, start, last
          exit !(n == 20 && first <= 2e-7 && worst <= 1e-5 && start - last >= 1) }'
}

run one 1 --micro-batch 8
run accumulated 1 --micro-batch 2
check "4 micro-batches of 2 are one of 8" agree one accumulated
run two 2 --micro-batch 4
check "2 ranks are 1" agree one two
run four 4 --micro-batch 1
check "4 ranks with 2 micro-batches each are 1" agree one four
run other 1 --micro-batch 8 --seed 1338
check "another seed's losses are seen to differ" eval '! agree one other'
echo "$checks checks passed"
