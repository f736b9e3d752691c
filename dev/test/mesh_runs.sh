#!/usr/bin/env bash
# Covers: promise 3: on ranks that share products and sequences, recompute, offload, graphs, sharding's prefetch, other
# schedules of the streams: the same bits of weights and log
# Covers: promise 2: so do runs of the program: packed documents, held-out loss, samples and exports are
# one rank's, also for hidden sizes that are no multiple of 4; sequences and heads that cannot be shared out are refused with
# what would do
# Timeout: 900
# Alone: its ranks take all cores
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
odd_model ffn=56

run() { # NAME RANKS ARGUMENTS…, with variables of the environment in `with`
  # shellcheck disable=SC2086  # words
  env ${with:-} bash -c 'source dev/test/lib.bash; trap - EXIT; limit=200 ranks "$@"' run "$2" "$train" --model "$scratch/odd.json" \
    --train-data "$scratch/letters.txt" --steps 6 --global-batch 8 --seq-len "${length:-64}" --lr 6e-3 --val-every 3 \
    --sample-every 3 --sample-tokens 20 --prompt '1 2 3' --temperature 0 --out "$scratch/$1" "${@:3}" >"$scratch/$1.txt" 2>&1 || {
    cat "$scratch/$1.txt" && fail "the run $1"
  }
}
mesh=(--tensor-parallel-degree 2 --context-parallel-degree 2)
same() {
  cmp "$scratch/$1/export/model.safetensors" "$scratch/$2/export/model.safetensors" &&
    cmp <(without_times "$scratch/$1/train.jsonl") <(without_times "$scratch/$2/train.jsonl")
}
# near A B KEY [LIMIT]: the numbers of that name in the logs, within 1e-5 of each other, as in ranks_agree.sh, or LIMIT.
near() {
  numbers() { sed -n "s/.*\"$2\":\([0-9.e+-]*\).*/\1/p" "$scratch/$1/train.jsonl"; }
  paste -d' ' <(numbers "$1" "$3") <(numbers "$2" "$3") | awk -v key="$3" -v limit="${4:-1e-5}" '
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; ++n }
    END { printf "     %s: %d numbers, differ by %.1e\n", key, n, worst; exit !(n >= 2 && worst <= limit) }'
}
sampled() { sed -n '/^sample/{n;p}' "$scratch/$1.txt"; }
same_samples() { cmp <(sampled "$1") <(sampled "$2") && [ "$(sampled "$1" | wc -l)" = 3 ]; }

echo "-- beside one rank"
for kind in rows packed; do
  words=()
  if [ $kind = packed ]; then words=(--packed-documents on --document-token 28); fi
  run $kind 1 "${words[@]}"
  run $kind-mesh 4 "${mesh[@]}" --zero-stage 3 "${words[@]}"
  for key in loss grad_norm val_loss; do check "$kind: $key" near $kind $kind-mesh $key; done
  check "$kind: greedy samples" same_samples $kind $kind-mesh
done

# Norms of 66 or 65 numbers, which one rank of the group squares alone; of six ranks three share keys and values, too. In
# bf16, whose partial sums are rounded, gradients' norms differ by 2e-4 here.
echo "-- sizes that are no multiple of 4"
sizes() { # HIDDEN TYPE RANKS
  odd_model layers=2 hidden="$1" ffn=90
  limit=60 ranks "$3" "$train" --model "$scratch/odd.json" --train-data "$scratch/letters.txt" --dtype "$2" --steps 3 --seq-len 32 \
    --global-batch 4 --micro-batch 4 --tensor-parallel-degree "$3" --lr 1e-3 --val-every 0 --sample-every 0 --export off --out "$scratch/$1-$2-$3" \
    >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && fail "hidden_size $1, $2, $3 rank(s)"; }
}
for words in "66 fp32 2" "66 bf16 2" "65 fp32 6"; do
  read -r hidden type n <<<"$words"
  sizes "$hidden" "$type" 1
  sizes "$hidden" "$type" "$n"
  for key in loss grad_norm; do
    check "hidden_size $hidden, $type, tensor $n: $key" near "$hidden-$type-1" "$hidden-$type-$n" $key "$([ "$type" = fp32 ] || echo 2e-3)"
  done
done
odd_model ffn=56

echo "-- the same bits"
run two 4 "${mesh[@]}" --zero-stage 3
check "twice" same rows-mesh two
for words in "--recompute block" "--recompute mlp --activation-offload all" "--cuda-graphs on" "--prefetch 3" "--micro-batch 8 --head-chunk 256"; do
  # shellcheck disable=SC2086  # words
  run other 4 "${mesh[@]}" --zero-stage 3 $words
  check "$words" same rows-mesh other
  rm -rf "$scratch/other"
done
# 1536 tokens: six tiles of 128 for each of two ranks, in one chunk, in four that are not equal, in six. Products of
# fewer rows may add in another order.
for chunks in 1 4 6; do length=192 run chunks-$chunks 2 --tensor-parallel-degree 2 --tensor-parallel-overlap $chunks; done
for chunks in 4 6; do
  for key in loss grad_norm; do check "$chunks chunks: $key" near chunks-1 chunks-$chunks $key; done
done
with="LLMC_CPU_STREAMS=random LLMC_CPU_ORDER=random LLMC_CPU_SEED=5" run random 4 "${mesh[@]}" --zero-stage 3
check "streams and threads at random" same rows-mesh random

echo "-- refused"
refused "sequences that cannot be cut" "use --seq-len 60 or 64" ranks 2 "$train" --seq-len 62 --context-parallel-degree 2 --out "$scratch/x"
refused "heads that cannot be shared" "choose one of: 1, 2" ranks 3 "$train" --model "$scratch/odd.json" --train-data "$scratch/letters.txt" --tensor-parallel-degree 3 --out "$scratch/x"
refused "fewer ranks than a group has" "choose one of: 1, 2" ranks 2 "$train" --context-parallel-degree 4 --out "$scratch/x"
check "none of these began a run" [ ! -e "$scratch/x" ]
echo "$checks checks passed"
