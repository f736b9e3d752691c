#!/usr/bin/env bash
# Covers: promise 2: Muon has the same bits in every ZeRO stage, with offload, recompute and graphs, in each type of state,
# and on tensor and context ranks the losses of one rank
# Covers: promise 4: its state goes from each mesh to each other, and on, on the same mesh to the last bit; killed and resumed
# at any moment, the same weights
# Timeout: 900
# Turn: 3
#
# MUON=every: each pair of meshes, each type of state with each kind of memory; else some, chosen by the commit.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

odd_model
options=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --seq-len 16 --lr 6e-3
  --warmup-steps 3 --global-batch 12 --steps 8 --val-every 4 --val-tokens 256 --sample-every 0)
whole=(--optimizer muon --micro-batch 3) # one micro-batch, with which all stages have the same bits

echo "-- the same bits"
types=("--dtype fp32" "--dtype bf16" "--dtype bf16 --moment-dtype bf16 --master-dtype bf16" "--dtype bf16 --fp8 delayed")
ways=("--zero-stage 1" "--zero-stage 2" "--zero-stage 3" "--zero-stage 0 --offload-optimizer"
  "--zero-stage 3 --offload-optimizer --offload-gradients --offload-weights" "--zero-stage 3 --recompute block" "--zero-stage 1 --cuda-graphs"
  "--zero-stage 3 --cuda-graphs --offload-optimizer")
some=3
if [ "${MUON:-}" = every ]; then some=""; fi
for type in "${types[@]}"; do
  read -ra type_words <<<"$type"
  rm -rf "$scratch/whole"
  run whole 4 "${whole[@]}" "${type_words[@]}" --zero-stage 0
  while read -ra way; do
    run shared 4 "${whole[@]}" "${type_words[@]}" "${way[@]}"
    check "$type: ${way[*]}" same whole shared
    rm -rf "$scratch/shared"
  done < <(printf '%s\n' "${ways[@]}" | some_of "$some")
done
run adamw 4 --micro-batch 3 --dtype bf16 --fp8 delayed
check "AdamW is another training" not same_weights whole adamw

echo "-- from mesh to mesh"
# name, ranks, ZeRO stage, degrees of sharding, tensor and context parallelism
meshes=("one 1 0 0 1 1" "ddp 2 0 0 1 1" "zero1 2 1 0 1 1" "zero2 3 2 0 1 1" "zero3 4 3 0 1 1" "hybrid 4 3 2 1 1"
  "tensor 2 0 0 2 1" "tensor-zero3 4 3 0 2 1" "context 2 3 0 1 2" "tensor-context 4 1 0 2 2")
degrees_of() { read -r name n stage degree tensor context <<<"$1"; }
options+=(--optimizer muon --micro-batch 1)
for mesh in "${meshes[@]}"; do
  degrees_of "$mesh"
  run "$name" "$n" --zero-stage "$stage" --hybrid-shard-degree "$degree" --tensor-parallel-degree "$tensor" \
    --context-parallel-degree "$context" --checkpoint-every 4
  check "$name: one rank's losses" near one "$name" 8 2e-7 1e-5
done
pairs=()
for from in "${meshes[@]}"; do for to in "${meshes[@]}"; do pairs+=("${from%% *} $to"); done; done
if [ "${MUON:-}" != every ]; then mapfile -t pairs < <(printf '%s\n' "${pairs[@]}" | some_of 4); fi
for pair in "${pairs[@]}"; do
  from=${pair%% *}
  degrees_of "${pair#* }"
  mkdir "$scratch/again"
  ranks "$n" "$build/test/reshard_checkpoint" "$(checkpoint "$from" 4)" "$scratch/again" "$stage" "$degree" "$tensor" "$context"
  check "saved on $from, loaded on $name, saved again: the same bits" \
    "$build/test/reshard_checkpoint" "$(checkpoint "$from" 4)" "$scratch/again/step-00000004"
  resume on "$n" "$(checkpoint "$from" 4)" --zero-stage "$stage" --hybrid-shard-degree "$degree" \
    --tensor-parallel-degree "$tensor" --context-parallel-degree "$context"
  check "  gone on: its losses" near "$from" on 4 1e-5 1e-5
  if [ "$from" = "$name" ]; then check "  to the last bit" ends_alike "$from" on 6; fi
  rm -rf "$scratch/on" "$scratch/again"
done
refused "another optimizer" "--optimizer adamw (was muon)" "$train" --resume "$(checkpoint one 4)" --optimizer adamw --out "$scratch/x"

echo "-- killed"
# shellcheck source=dev/test/stopping.bash
source "$root/dev/test/stopping.bash"
stopping_trainer tiny
"$root/dev/bench/one_hash" --steps 20 --global-batch 4 --micro-batch 4 --optimizer muon --program "$stopping" >"$scratch/killed.txt" ||
  { cat "$scratch/killed.txt" && fail "one_hash"; }
check "killed and resumed: one hash" says killed "one hash"
echo "$checks checks passed"
