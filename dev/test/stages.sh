#!/usr/bin/env bash
# Covers: promise 4: a training of three stages (other data, sequences twice as long with scaled RoPE, a cooldown) that is killed
# in each has the bits of one that is left alone; on another mesh in the second stage it has the same losses; a cooldown from a
# checkpoint of a stage begins there; a stage begins with an empty window of spikes; what a stage may not change is refused
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1
${CC:-cc} -shared -fPIC -O1 -o "$scratch/disk.so" dev/test/disk_preload.c
odd_model
tac "$scratch/letters.txt" >"$scratch/other.txt"
sed 's/"max_position_embeddings": 512, "rope_theta": 10000.0/"max_position_embeddings": 1024, "rope_theta": 10000.0,\n "rope_scaling": {"rope_type": "linear", "factor": 2.0}/' \
  "$scratch/odd.json" >"$scratch/scaled.json"
first=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --seq-len 16 --global-batch 8 --micro-batch 4 --lr 6e-3
  --warmup-steps 2 --schedule constant --steps 6 --val-every 3 --val-tokens 256 --sample-every 0 --checkpoint-every 2)
second=(--stage long --model "$scratch/scaled.json" --train-data "$scratch/other.txt" --seq-len 32 --global-batch 4 --warmup-steps 1
  --steps 5)
third=(--stage anneal --cooldown-steps 4 --cooldown-shape 1-sqrt)

# killed NAME FROM CALL ARGUMENTS…: goes on from there until its CALL-th call of the disk, then by --resume auto and `again`.
again=()
killed() {
  local code=0
  LD_PRELOAD=$scratch/disk.so DISK_DOES=kill DISK_RANK=0 DISK_CALL=$3 \
    "$train" --out "$scratch/$1" --resume "$2" "${@:4}" >"$scratch/$1.txt" 2>&1 || code=$?
  [ $code = 137 ] || { cat "$scratch/$1.txt" && fail "$1 was to be killed, and ended with $code"; }
  resume "$1" 1 auto "${again[@]}"
}
last() { checkpoint "$1" "$2"; }

run one 1 "${first[@]}"
resume two 1 "$scratch/one" "${second[@]}"
resume three 1 "$scratch/two" "${third[@]}"
check "the banner tells what the stage changes" says two "--seq-len 32 (was 16)"
check "and which stages came before" says three "long, from step 7 on, after 768 tokens"
check "a stage has its own schedule, which ends at a tenth" awk '{ last = $2 } END { exit !(last > 5.99e-4 && last < 6.01e-4) }' <(numbers three lr)
check "  also of the model" says two "max_position_embeddings 1024 (was 512)"
check "  and of its RoPE" says two '"rope_type":"linear"'
check "  whose weights are not random" says two "scaled.json, with the weights of the checkpoint"
check "the steps go on" [ "$(numbers three loss | cut -d' ' -f1 | tr '\n' ' ')" = "12 13 14 15 " ]

check "a cooldown from a constant rate raises nothing" says_not three "higher learning rate"
resume again 1 "$(last three 15)" --stage again --schedule constant --steps 2
check "a stage after a cooldown goes back to the rate of before, with a warning" says again "step 15 had 0.0006, step 16 has 0.006"

echo "-- killed in each"
for call in 1 60; do # in the first save of a run, and in a later one
  killed one-$call none $call "${first[@]}"
  check "killed at call $call of the first stage" same one one-$call
  killed two-$call "$scratch/one-$call" $call "${second[@]}"
  check "  of the second" same two two-$call
  again=("${third[@]}") # as a job that is started again gives them
  killed three-$call "$scratch/two-$call" $call "${third[@]}"
  check "  of the third, whose arguments are given again" same three three-$call
  again=()
done
run whole 1 "${first[@]}"
resume whole 1 "$scratch/whole" "${second[@]}"
resume whole 1 "$scratch/whole" "${third[@]}"
cp -r "$scratch/one" "$scratch/place"
killed place "$scratch/place" 1 "${second[@]}"
check "killed in the first save of a stage in the folder of its run" same_weights two place
check "all in one folder: the same weights" same_weights three whole
check "  and one log" [ "$(numbers whole loss | wc -l)" = 15 ]

echo "-- a cooldown as a branch of a stage"
larger=(--stage larger --seq-len 32)
resume stable 1 "$scratch/one" "${larger[@]}" --steps 5
resume planned 1 "$scratch/one" "${larger[@]}" --steps 6 --schedule wsd --cooldown-steps 2
resume branch 1 "$(last stable 10)" --cooldown-steps 2
check "it begins at the checkpoint" ends_alike planned branch 3
resume share 1 "$(last stable 10)" --cooldown-steps 20%
check "a share is one of the stage's steps" [ "$(numbers share loss | cut -d' ' -f1)" = 11 ]
check "an export tells the tokens of all stages: 6 x 128 and 5 x 256" grep -qF "| tokens | 2.05k |" "$scratch/stable/export/README.md"

echo "-- the window of --skip-spikes"
window() { LC_ALL=C sed -n 's/.*"other\/spike_losses@0":{[^}]*"shape":\[\([0-9]*\)\].*/\1/p' "$(last "$1" "$2")"/rank-*.safetensors; } # its steps
run spikes 1 "${first[@]}" --skip-spikes 6
resume spikes2 1 "$scratch/spikes" --stage next --steps 2
resume spikes3 1 "$scratch/spikes" --steps 8
check "a stage begins with an empty one" [ "$(window spikes 6) $(window spikes2 8) $(window spikes3 8)" = "6 2 8" ]

echo "-- on another mesh"
resume wide 4 "$(last one 6)" "${second[@]}" --micro-batch 1 --zero-stage 3 --tensor-parallel-degree 2
check "the second stage on 4 ranks: one rank's losses" near two wide 5 1e-5 1e-5
resume narrow 1 "$(last wide 11)" "${third[@]}" --micro-batch 4 --tensor-parallel-degree 1 --zero-stage 0
check "the third on one again" near three narrow 4 1e-5 1e-5

echo "-- refused"
while IFS='|' read -r what text words; do
  # shellcheck disable=SC2086  # words
  refused "$what" "$text" "$train" --resume "$(last two 11)" $words --out "$scratch/x"
done <<END
a stage without a length|how long is it|--stage next
a stage of a name that it had|has had a stage of this name|--stage long --steps 3
another optimizer|--optimizer muon (was adamw)|--stage next --steps 3 --optimizer muon
another model|num_hidden_layers is 3, here it is 2|--stage next --steps 3 --layers 2
  which says what a stage may change|a stage may change rope_theta|--stage next --steps 3 --layers 2
other data without a stage|--stage NAME|--train-data $scratch/letters.txt --steps 20
END
refused "a stage without a checkpoint" "--resume DIR" "$train" --stage next --steps 3 --out "$scratch/x"
refused "--resume auto in another stage" 'is in its stage "long"' "$train" --resume auto --stage next --steps 3 --out "$scratch/two"
refused "a stage that is shorter than it was" "which counts from step 7, the first of its stage" \
  "$train" --resume auto --steps 3 --out "$scratch/two"
check "none of these began a run" [ ! -e "$scratch/x" ]

echo "-- ended without a checkpoint of its own"
resume unsaved 1 "$(last two 11)" "${third[@]}" --checkpoint-every 0
rm -rf "$scratch/two/checkpoints"
refused "a run that began at a checkpoint that is gone" "has ended" "$train" --resume auto --out "$scratch/unsaved"
begun=$scratch/three-1/run.json
check "a run's start tells where it began" grep -q '"stage": *"anneal"' "$begun"
echo "$checks checks passed"
