#!/usr/bin/env bash
# Covers: promise 2: every way to share the state out among the ranks trains as one rank does; all stages have the same
# bits, with several micro-batches 0 those of 1 and 2 those of 3; in any schedule of the streams
# Covers: promise 6: a sharded model is imported and exported whole
# Covers: promise 2: a step as it is recorded by a device that executes nothing is the one that is executed
# Timeout: 900
# Alone: its ranks take all cores
#
# SHARDING=every: instead, every stage on 1, 2, 3, 4 and 8 ranks and on hybrid meshes, with 1 and 3 micro-batches; beside
# the losses, the weights, no further from one rank's than 3 times what the order of its micro-batches moves those.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree

# A short steep run on an odd vocabulary (letters of the text, as tokens below 97).
for tied in false true; do
  odd_model tied=$tied
  mv "$scratch/odd.json" "$scratch/$tied.json"
done
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --model "${model:-$scratch/$tied.json}" --train-data "$scratch/letters.txt" --steps 20 \
    --global-batch "${batch:-24}" --seq-len "${length:-32}" --lr "${rate:-6e-3}" --warmup-steps 3 --val-every 20 --sample-every 0 --out "$scratch/$tied-$1" "${@:3}" \
    >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && fail "the run $1"; }
  losses "$scratch/$tied-$1/train.jsonl" >"$scratch/$tied-$1.losses"
}
# same A B: all bits of the weights and of the log.
same() {
  cmp "$scratch/$tied-$1/export/model.safetensors" "$scratch/$tied-$2/export/model.safetensors" &&
    cmp <(without_times "$scratch/$tied-$1/train.jsonl") <(without_times "$scratch/$tied-$2/train.jsonl")
}
# agree A B: as in ranks_agree.sh: the first loss to rounding, 20 of a falling loss within 1e-5.
agree() {
  paste -d' ' "$scratch/$tied-$1.losses" "$scratch/$tied-$2.losses" | awk -v a="$1" -v b="$2" '
    { d = ($2 - $4) / $2; if (d < 0) d = -d; if (d > worst) worst = d; if (NR == 1) { first = d; start = $2 } last = $2 }
    END { printf "     %s against %s: %d losses, first differs by %.1e, worst by %.1e, loss %.3f to %.3f\n", a, b, NR, first, worst, start, last
          exit !(NR == 20 && first <= 2e-7 && worst <= 1e-5 && start - last >= 0.5) }'
}

# rounded A B: B's gradients were rounded on their way: the first loss knows none, the second those of one step, of which
# each number is off by 2^-9 of itself at most and the update by less, since AdamW divides by their size.
rounded() {
  paste -d' ' "$scratch/$tied-$1.losses" "$scratch/$tied-$2.losses" | awk '
    { d = ($2 - $4) / $2; if (d < 0) d = -d } NR == 1 { first = d } NR == 2 { second = d }
    END { printf "     first loss differs by %.1e, second by %.1e\n", first, second; exit !(first == 0 && second > 0 && second < 2^-9) }'
}

# weights NAME…: the files of their weights.
weights() { printf "$scratch/$tied-%s/export/model.safetensors\n" "$@"; }
# largest NAME…: the largest of the distances on standard input, and whose it is.
largest() { sort -g | tail -n 1 | sed "s#$scratch/$tied-##g; s#/export/model.safetensors##g"; }
val_losses() { sed -n 's/.*"val_loss":\([^,}]*\).*/\1/p' "$scratch/$tied-$1/train.jsonl"; }
# validates_as A B: before the first step to rounding, after the last one as `agree` says of the losses.
validates_as() {
  paste -d' ' <(val_losses "$1") <(val_losses "$2") | awk '
    { d = ($1 - $2) / $1; if (d < 0) d = -d; if (d > worst) worst = d; if (NR == 1) first = d }
    END { printf "     held-out losses: the first differs by %.1e, worst by %.1e\n", first, worst
          exit !(NR == 2 && first <= 2e-7 && worst <= 1e-5) }'
}
# within A B: distance A is at most 3 times the spread B, which is no more than rounding.
within() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(0 < b && b <= 1e-4 && a <= 3 * b) }'; }

# Every mesh and stage, in 1 and in 3 micro-batches: of 72 sequences, so that the share of each rank can be cut in 3.
every() {
  local batch=72 length=16 n replicas degree parts name stage cut mesh spread worst names=() cuts=(72 36 24 18 12 9 8 6 4 3 2 1)
  for cut in "${cuts[@]}"; do run "cut-$cut" 1 --micro-batch "$cut"; done
  mapfile -t files < <(weights "${cuts[@]/#/cut-}")
  spread=$(dev/test/weights_distance.py --pairs "${files[@]}" | largest)
  echo "     the spread: one rank's weights, its batch cut in ${#cuts[@]} ways, are at most ${spread/ / apart: }"
  for mesh in "1 1" "1 2" "1 3" "1 4" "1 8" "2 2" "4 2" "2 4"; do # replicas x ranks that shard
    read -r replicas degree <<<"$mesh"
    n=$((replicas * degree))
    for parts in 1 3; do
      name=$replicas-x-$degree-in-$parts
      for stage in 0 1 2 3; do
        run "$name-$stage" $n --zero-stage $stage --hybrid-shard-degree "$degree" --micro-batch $((batch / n / parts))
        names+=("$name-$stage")
      done
      check "$replicas x $degree ranks, micro-batches: $parts; stage 1 has the bits of 0" same "$name-0" "$name-1"
      check "  stage 3 those of 2" same "$name-2" "$name-3"
      if [ $parts = 1 ]; then check "  stage 2 those of 0" same "$name-0" "$name-2"; fi
      for stage in 0 2; do
        check "  stage $stage: one rank's losses" agree cut-72 "$name-$stage"
        check "    and held-out losses" validates_as cut-72 "$name-$stage"
      done
    done
  done
  mapfile -t files < <(weights cut-72 "${names[@]}")
  dev/test/weights_distance.py "${files[@]}" >"$scratch/distances"
  worst=$(largest <"$scratch/distances")
  echo "     of ${#names[@]} runs, the weights furthest from one rank's: ${worst/ /, }"
  spread=${spread%% *} worst=${worst%% *}
  check "all weights within 3 times the spread: $(awk "BEGIN { printf \"%.2f\", $worst / $spread }")" within "$worst" "$spread"
  run other 1 --seed 5
  mapfile -t files < <(weights cut-72 other)
  # shellcheck disable=SC2016
  check "another seed's are seen to be far" eval '! within "$(dev/test/weights_distance.py "${files[@]}" | largest)" "$spread"'
}
if [ "${SHARDING:-}" = every ]; then
  for tied in false true; do
    echo "-- tied head: $tied"
    every
  done
  echo "$checks checks passed"
  exit
fi

for mesh in "1 0 0" "2 0 0" "3 1 0" "4 2 0" "4 3 2"; do
  read -r n stage degree <<<"$mesh"
  check "$n ranks, stage $stage, degree $degree: the record of a step is that of a device that executes nothing" \
    ranks "$n" "$build/test/recorded" "$stage" "$degree"
done
tied=false
echo "-- a head of its own"
run one 1
for stage in 0 3; do run 3-$stage 3 --zero-stage $stage; done
check "3 ranks are one" agree one 3-0
check "3 ranks, stage 3: the bits of stage 0" same 3-0 3-3

tied=true
echo "-- a tied head"
run one 1
for n in 2 3 4; do
  run "$n-0" $n
  check "$n ranks are one" agree one "$n-0"
  stages=(1 2 3)
  if [ $n = 4 ]; then stages=(3); fi
  for stage in "${stages[@]}"; do
    run "$n-$stage" $n --zero-stage "$stage"
    check "$n ranks, stage $stage: the bits of stage 0" same "$n-0" "$n-$stage"
  done
done
run 4-hybrid 4 --zero-stage 3 --hybrid-shard-degree 2
check "4 ranks, 2 of which shard: one rank's losses" agree one 4-hybrid
run 4-hybrid2 4 --zero-stage 2 --hybrid-shard-degree 2
check "  the bits of stage 2" same 4-hybrid 4-hybrid2
for stage in 0 1 2 3; do run "2-$stage-3" 2 --zero-stage $stage --micro-batch 4; done
check "3 micro-batches: the bits of stages 0 and 1 are the same" same 2-0-3 2-1-3
check "  those of 2 and 3" same 2-2-3 2-3-3
check "  and one rank's losses" agree one 2-3-3
for stage in 0 1 2 3; do run "3-$stage-bf16" 3 --zero-stage $stage --reduce-dtype bf16; done
for stage in 1 2 3; do check "gradients travel in bf16: stage $stage has the bits of stage 0" same 3-0-bf16 3-$stage-bf16; done
check "  which are near those of fp32, and others" rounded 3-0 3-0-bf16
LLMC_CPU_STREAMS=lazy run 2-lazy 2 --zero-stage 3 --micro-batch 4
check "streams lazy: the same bits" same 2-3-3 2-lazy
LLMC_CPU_STREAMS=random LLMC_CPU_SEED=5 run 2-random 2 --zero-stage 3 --micro-batch 4 --prefetch 2
check "streams at random, 2 units ahead: the same bits" same 2-3-3 2-random
check "another seed is seen" eval 'run other 2 --zero-stage 3 --seed 5 && ! agree one other && ! same 2-3 other'

# What is measured and sampled of a model is the same where its weights are shared out.
look() { # RANKS ARGUMENTS…
  ranks "$1" "$train" --model "$scratch/true-one/export" --seq-len 32 --temperature 0 --prompt '5 9 20' --sample-tokens 12 \
    --val-data "$scratch/letters.txt" --val-tokens 16384 "${@:2}" 2>&1 | grep -aE '^held-out|^5 9 20'
}
for what in --eval-only --sample-only; do
  look 1 $what >"$scratch/one.txt"
  look 3 $what --zero-stage 3 >"$scratch/three.txt"
  check "$what on 3 ranks that share: as on one" cmp "$scratch/one.txt" "$scratch/three.txt"
  check "  and something" [ -s "$scratch/one.txt" ]
done

# A model of one rank, imported by ranks that shard, and exported without a step that changes it.
model=$scratch/true-one/export rate=1e-30 run imported 3 --zero-stage 3
check "imported and exported on 3 ranks: the same bits" cmp "$scratch/true-one/export/model.safetensors" "$scratch/true-imported/export/model.safetensors"
refused "a degree that does not divide" "--hybrid-shard-degree 3 does not divide" ranks 4 "$train" --hybrid-shard-degree 3 --steps 1
echo "$checks checks passed"
