#!/usr/bin/env bash
# Covers: promise 2: every way to share the state out among the ranks trains as one rank does; all stages have the same
# bits, with several micro-batches 0 those of 1 and 2 those of 3; in any schedule of the streams
# Covers: promise 5: k micro-batches give the losses of one batch k times as large
# Covers: promise 6: a sharded model is imported and exported whole
# Covers: promise 2: a step as it is recorded by a device that executes nothing is the one that is executed
# Timeout: 900
#
# SHARDING=every: instead, every stage on 1, 2, 3, 4 and 8 ranks and on hybrid meshes, with 1 and 3 micro-batches; not only
# the losses, but also the weights are no further from one rank's than 3 times what the order of its micro-batches moves.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree

# A short steep run on an odd vocabulary (letters of the text, as tokens below 97).
for tied in false true; do
  odd_model tied=$tied
  mv "$scratch/odd.json" "$scratch/$tied.json"
done
options=(--train-data "$scratch/letters.txt" --seq-len 16 --lr 1e-2 --warmup-steps 3 --val-tokens 256 --sample-every 0)
# agree A B: the first losses, to train on and held out, to rounding; those of a falling loss within 1e-5: the order of
# additions differs, and the steps amplify that difference.
agree() { near "$1" "$2" "$steps" 2e-7 1e-5 && key=val_loss near "$1" "$2" 2 2e-7 1e-5; }

# weights NAME…: the files of their weights.
weights() { printf "$scratch/%s/export/model.safetensors\n" "$@"; }
# largest: the largest of the distances on standard input, and whose it is.
largest() { sort -g | tail -n 1 | sed "s#$scratch/##g; s#/export/model.safetensors##g"; }
# within A B: distance A is at most 3 times the spread B, which is no more than rounding.
within() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(0 < b && b <= 1e-4 && a <= 3 * b) }'; }

# Every mesh and stage, in 1 and in 3 micro-batches: of 72 sequences, so that the share of each rank can be cut in 3.
every() { # PREFIX of the runs' names, ARGUMENTS…
  local prefix=$1 options=("${options[@]}" "${@:2}")
  local batch=72 n replicas degree parts name stage cut mesh spread worst names=() cuts=(72 36 24 18 12 9 8 6 4 3 2 1)
  for cut in "${cuts[@]}"; do run "$prefix-$cut" 1 --micro-batch "$cut"; done
  check "one rank learns" falls "$prefix-72" 0.5
  mapfile -t files < <(weights "${cuts[@]/#/$prefix-}")
  spread=$(dev/test/weights_distance.py --pairs "${files[@]}" | largest)
  echo "     the spread: one rank's weights, its batch cut in ${#cuts[@]} ways, are at most ${spread/ / apart: }"
  for mesh in "1 1" "1 2" "1 3" "1 4" "1 8" "2 2" "4 2" "2 4"; do # replicas x ranks that shard
    read -r replicas degree <<<"$mesh"
    n=$((replicas * degree))
    for parts in 1 3; do
      name=$prefix-$replicas-x-$degree-in-$parts
      for stage in 0 1 2 3; do
        run "$name-$stage" $n --zero-stage $stage --hybrid-shard-degree "$degree" --micro-batch $((batch / n / parts))
        names+=("$name-$stage")
      done
      check "$replicas x $degree ranks, micro-batches: $parts; stage 1 has the bits of 0" same "$name-0" "$name-1"
      check "  stage 3 those of 2" same "$name-2" "$name-3"
      if [ $parts = 1 ]; then check "  stage 2 those of 0" same "$name-0" "$name-2"; fi
      for stage in 0 2; do check "  stage $stage: one rank's losses" agree "$prefix-72" "$name-$stage"; done
    done
  done
  mapfile -t files < <(weights "$prefix-72" "${names[@]}")
  worst=$(dev/test/weights_distance.py "${files[@]}" | largest)
  echo "     of ${#names[@]} runs, the weights furthest from one rank's: ${worst/ /, }"
  spread=${spread%% *} worst=${worst%% *}
  check "all weights within 3 times the spread: $(awk "BEGIN { printf \"%.2f\", $worst / $spread }")" within "$worst" "$spread"
  run "$prefix-other" 1 --seed 5
  mapfile -t files < <(weights "$prefix-72" "$prefix-other")
  check "another seed's are seen to be far" not within "$(dev/test/weights_distance.py "${files[@]}" | largest | cut -d' ' -f1)" "$spread"
}
if [ "${SHARDING:-}" = every ]; then
  steps=20
  for tied in false true; do
    echo "-- tied head: $tied"
    every "$tied" --model "$scratch/$tied.json" --steps $steps --val-every $steps --global-batch 72
  done
  echo "$checks checks passed"
  exit
fi

# Name, ranks, what it is held against (~ to rounding, = to the last bit), and options.
steps=12
options+=(--steps "$steps" --val-every "$steps" --global-batch 12)
while read -r name n other words; do
  if [[ $name != own-head* ]]; then words+=" --model $scratch/true.json"; fi
  # shellcheck disable=SC2086  # words
  run "$name" "$n" $words
  case $other in
    ~*) check "$name: one rank's losses" agree "${other#\~}" "$name" ;;
    =*) check "$name: the bits of ${other#=}" same "${other#=}" "$name" ;;
  esac
done <<END
one          1 -
accumulated  1 ~one  --micro-batch 3
2-ranks      2 ~one
3-ranks      3 ~one
3-stage-1    3 =3-ranks  --zero-stage 1
3-stage-2    3 =3-ranks  --zero-stage 2
3-stage-3    3 =3-ranks  --zero-stage 3
4-ranks      4 ~one
4-stage-3    4 =4-ranks  --zero-stage 3
hybrid-2     4 ~one  --zero-stage 2 --hybrid-shard-degree 2
hybrid-3     4 =hybrid-2  --zero-stage 3 --hybrid-shard-degree 2
0-in-3       2 ~one  --micro-batch 2
1-in-3       2 =0-in-3  --micro-batch 2 --zero-stage 1
2-in-3       2 ~one  --micro-batch 2 --zero-stage 2
3-in-3       2 =2-in-3  --micro-batch 2 --zero-stage 3
bf16         3 -  --reduce-dtype bf16
bf16-1       3 =bf16  --reduce-dtype bf16 --zero-stage 1
bf16-2       3 =bf16  --reduce-dtype bf16 --zero-stage 2
bf16-3       3 =bf16  --reduce-dtype bf16 --zero-stage 3
own-head     1 -  --model $scratch/false.json
own-head-0   3 ~own-head  --model $scratch/false.json
own-head-3   3 =own-head-0  --model $scratch/false.json --zero-stage 3
END
check "the loss falls" falls one 0.5
# Gradients that were rounded on their way: the first loss knows none. Each number is off by 2^-9 of itself at most and an
# update by less, since AdamW divides by their size.
check "gradients that are reduced in bf16 train nearly the same" near 3-ranks bf16 $steps 0 2e-3
check "  and not quite" not same_weights 3-ranks bf16
options+=(--model "$scratch/true.json")
LLMC_CPU_STREAMS=lazy run lazy 2 --zero-stage 3 --micro-batch 2
check "streams lazy: the same bits" same 3-in-3 lazy
LLMC_CPU_STREAMS=random LLMC_CPU_SEED=5 run random 2 --zero-stage 3 --micro-batch 2 --prefetch 2
check "streams at random, 2 units ahead: the same bits" same 3-in-3 random
run other 1 --seed 5
check "another seed is seen" not agree one other

for mesh in "1 0 0" "2 0 0" "3 1 0" "4 2 0" "4 3 2"; do
  read -r n stage degree <<<"$mesh"
  check "$n ranks, stage $stage, degree $degree: the record of a step is that of a device that executes nothing" \
    ranks "$n" "$build/test/recorded" "$stage" "$degree"
done

# Ranks that share the weights out measure and sample as one rank does.
look() { # RANKS ARGUMENTS…
  ranks "$1" "$train" --model "$scratch/one/export" --seq-len 32 --temperature 0 --prompt '5 9 20' --sample-tokens 12 \
    --val-data "$scratch/letters.txt" --val-tokens 2048 "${@:2}" 2>&1 | grep -aE '^held-out|^5 9 20'
}
for what in --eval-only --sample-only; do
  look 1 $what >"$scratch/one.txt"
  look 3 $what --zero-stage 3 >"$scratch/three.txt"
  check "$what on 3 ranks that share: as on one" same_figures "$scratch/one.txt" "$scratch/three.txt"
done

# A model of one rank, imported by ranks that shard, and exported without a step that changes it.
options=(--train-data "$scratch/letters.txt" --seq-len 16 --steps 1 --global-batch 12 --val-every 0 --sample-every 0 --lr 1e-30)
run imported 3 --zero-stage 3 --model "$scratch/one/export"
check "imported and exported on 3 ranks: the same bits" same_weights one imported
refused "a degree that does not divide" "--hybrid-shard-degree 3 does not divide" \
  ranks 4 "$train" --hybrid-shard-degree 3 --steps 1
echo "$checks checks passed"
