#!/usr/bin/env bash
# Covers: promise 3: on ranks that share products and sequences, recompute, offload, graphs, sharding's prefetch, other
# schedules of the streams: the same bits of weights and log
# Covers: promise 2: so do runs of the program: packed documents, held-out loss, samples and exports are
# one rank's, also for hidden sizes that are no multiple of 4; sequences and heads that cannot be shared out are refused with
# what would do
# Timeout: 900
# Turn: 2
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
data=(--train-data "$scratch/letters.txt")
mesh=(--tensor-parallel-degree 2 --context-parallel-degree 2 --zero-stage 3)
sampled() { sed -n '/^sample/{n;p}' "$scratch/$1.txt"; }
# same_sample A B WHICH: those of the same weights, head or tail of what the runs sampled. Of other trainings' weights, which
# differ by rounding, two likeliest tokens may be as near to one another.
same_sample() { cmp <(sampled "$1" | "$3" -n 1) <(sampled "$2" | "$3" -n 1) && [ "$(sampled "$1" | wc -l)" = 3 ]; }

echo "-- against one rank"
odd_model ffn=56
options=(--model "$scratch/odd.json" "${data[@]}" --steps 4 --global-batch 8 --lr 6e-3 --val-every 2 --val-tokens 256
  --sample-every 2 --sample-tokens 20 --prompt '1 2 3' --temperature 0)
for kind in rows packed; do
  words=(--seq-len 32)
  if [ $kind = packed ]; then words+=(--packed-documents on --document-token 28); fi
  run $kind 1 "${words[@]}"
  run $kind-mesh 4 "${mesh[@]}" "${words[@]}"
  for key in loss grad_norm; do check "$kind: $key" near $kind $kind-mesh 4 1e-5 1e-5; done
  key=val_loss check "$kind: held-out loss" near $kind $kind-mesh 3 1e-5 1e-5
  check "$kind: greedy samples before training" same_sample $kind $kind-mesh head
  resume $kind-sampled 4 none --model "$scratch/$kind/export" "${mesh[@]}" "${words[0]}" "${words[1]}" --sample-only \
    --sample-tokens 20 --prompt '1 2 3' --temperature 0
  check "$kind:   and after it, of one rank's weights" same_sample $kind $kind-sampled tail
done

echo "-- the same bits"
run two 4 "${mesh[@]}" --seq-len 32
check "twice" same rows-mesh two
for words in "--recompute block --prefetch 3" "--recompute mlp --activation-offload all --cuda-graphs on" \
  "--micro-batch 8 --head-chunk 128"; do
  # shellcheck disable=SC2086  # words
  run other 4 "${mesh[@]}" --seq-len 32 $words
  check "$words" same rows-mesh other
  rm -rf "$scratch/other"
done
LLMC_CPU_STREAMS=random LLMC_CPU_ORDER=random LLMC_CPU_SEED=5 run random 4 "${mesh[@]}" --seq-len 32
check "streams and threads at random" same rows-mesh random

# 1536 tokens: six tiles of 128 for each of two ranks, in one chunk, in four that are not equal, in six. Products of
# fewer rows may add in another order.
options=(--model "$scratch/odd.json" "${data[@]}" --steps 3 --global-batch 8 --seq-len 192 --lr 6e-3 --val-every 0
  --sample-every 0 --export off --tensor-parallel-degree 2)
for chunks in 1 4 6; do run chunks-$chunks 2 --tensor-parallel-overlap $chunks; done
for chunks in 4 6; do
  for key in loss grad_norm; do check "$chunks chunks: $key" near chunks-1 chunks-$chunks 3 1e-5 1e-5; done
done

# Norms of 66 or 65 numbers, which one rank of the group squares alone; of six ranks three share keys and values, too. In
# bf16 each rank's part of a sum is rounded by 2^-9 of itself, and the steps amplify that in gradients' norms.
echo "-- sizes that are no multiple of 4"
options=("${data[@]}" --steps 3 --seq-len 32 --global-batch 4 --micro-batch 4 --lr 1e-3 --val-every 0 --sample-every 0
  --export off)
for words in "66 fp32 2 1e-5 1e-5" "66 bf16 2 2e-3 5e-3" "65 fp32 6 1e-5 1e-5"; do
  read -r hidden type n of_loss of_norm <<<"$words"
  odd_model layers=2 hidden="$hidden" ffn=90
  for count in 1 "$n"; do
    run "$hidden-$type-$count" "$count" --model "$scratch/odd.json" --dtype "$type" --tensor-parallel-degree "$count"
  done
  for most in "loss $of_loss" "grad_norm $of_norm"; do
    read -r key most <<<"$most"
    check "hidden_size $hidden, $type, tensor $n: $key" near "$hidden-$type-1" "$hidden-$type-$n" 3 "$most" "$most"
  done
done

echo "-- refused"
while IFS='|' read -r what text n words; do
  # shellcheck disable=SC2086  # words
  refused "$what" "$text" ranks "$n" "$train" $words --out "$scratch/x" </dev/null
done <<END
sequences that cannot be cut|use --seq-len 60 or 64|2|--seq-len 62 --context-parallel-degree 2
heads that cannot be shared|choose one of: 1, 2, 6|3|--model $scratch/odd.json ${data[*]} --tensor-parallel-degree 3
fewer ranks than a group has|choose one of: 1, 2|2|--context-parallel-degree 4
END
check "none of these began a run" [ ! -e "$scratch/x" ]
echo "$checks checks passed"
