#!/usr/bin/env bash
# Covers: what a start leaves when it fails or is killed; --resume auto without a checkpoint; --quiet; what runs print that
# train nothing, or one step; an error within a sample; exit code 2 of a dry run that does not fit
# Timeout: 200
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
export LLMC_THREADS=1

model=(--layers 1 --seq-len 16)
short=("${model[@]}" --global-batch 2 --val-every 0)
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" "${@:3}" --out "$1" >"$1.txt" 2>&1 || { cat "$1.txt" && fail "the run $1"; }
}

echo "-- a start that fails, or is killed"
limited() { (ulimit -f 1 && "$train" "${short[@]}" --steps 1 "$@"); } # files of at most 1 KiB: no config.json
refused "the folder cannot be written" "config.json" limited --out failed
check "  and nothing of it is left" [ ! -e failed ]
mkdir own
refused "the same in an empty folder" "config.json" limited --out own
check "  which stays" rmdir own
"$train" --layers 1 --seq-len 1024 --global-batch 512 --micro-batch 8 --steps 1 --val-every 0 --out killed >killed.txt 2>&1 &
child=$!
wait_for killed.txt "^  memory"
refused "a folder in which a run starts" "its run has not ended" "$train" "${short[@]}" --steps 1 --out killed --lock-timeout 0
kill -KILL "$child"
wait "$child" || true
check "kill -9 leaves a folder" [ -e killed/train.jsonl ]
run killed 1 "${short[@]}" --steps 1
check "which the next start takes" [ "$(losses killed/train.jsonl | wc -l)" = 1 ]
refused "a folder with a finished step" "exists and is not an empty directory" "$train" "${short[@]}" --steps 1 --out killed
mkdir own && echo "{}" >own/config.json && : >own/train.jsonl && echo 1 >own/results.csv
refused "a folder with a file of somebody's" "exists and is not an empty directory" "$train" "${short[@]}" --steps 1 --out own
check "  which is left as it is" [ "$(cat own/*)" = "$(printf '{}\n1')" ]

echo "-- runs/latest, --resume auto"
latest() { [ "$(readlink -f runs/latest)" = "$scratch/$1" ]; }
check "runs/latest is the run whose first step ended last" latest killed
run ended 1 "${short[@]}" --steps 1
cp ended/export/model.safetensors ended.safetensors
refused "--resume auto into a run that has ended, without a checkpoint" "the run in ended has ended" \
  "$train" "${short[@]}" --steps 2 --resume auto --out ended
check "the same steps are done: it succeeds" exits 0 "$train" "${short[@]}" --steps 1 --resume auto --out ended
check "  and says so" said "the run in ended is done"
check "  the weights stay" cmp ended/export/model.safetensors ended.safetensors
run twice 1 "${short[@]}" --steps 3 --checkpoint-every 2 --keep-checkpoints 0
rm -r twice/checkpoints/step-00000003
tells "what a resumed run moves is told: the log" "the lines of train.jsonl after step 2 are in twice/train.rolled-back.jsonl now" run twice 1 --resume auto
check "  and the export" says twice "the export of before is twice/export.before-step-2 now"
tells "--resume auto says that it begins" "no checkpoint in fresh: starts from the beginning" run fresh 2 "${short[@]}" --steps 2 --checkpoint-every 1 --resume auto
check "a run with --out becomes runs/latest" latest fresh
ranks 1 "$train" --resume auto --steps 3 >latest.txt 2>&1
check "--resume auto follows it" says latest "goes on    after step 2 of fresh/checkpoints/step-00000002"
check "  and says nothing else" not says latest "no checkpoint in"
check "  but that the longer schedule gives other learning rates" says latest \
  "warning: the learning rate does not go on as it was: step 2 had 0.0004, and by the schedule of 3 steps it has 0.0022; step 3 has 0.0004"
run steady 1 "${short[@]}" --steps 2 --checkpoint-every 2 --schedule constant
ranks 1 "$train" --resume steady --steps 3 --out steadier >steady.txt 2>&1
check "  which a constant one does not" not says steady "learning rate does not go on"
mkdir linked && : >linked/train.jsonl && echo mine >mine.txt && ln -s ../mine.txt linked/memory.txt.partial
run linked 1 "${short[@]}" --steps 1
check "a link in a folder that looks like a start's is not followed" [ "$(cat mine.txt)" = mine ]
mkdir log && : >mine.txt && ln -s ../mine.txt log/train.jsonl
refused "a log that is a link" "cannot write log/train.jsonl" "$train" "${short[@]}" --steps 1 --out log
check "  is not followed either" [ ! -s mine.txt ]
rm runs/latest
ranks 1 "$train" "${short[@]}" --steps 1 --resume auto >none.txt 2>&1
check "without runs/latest it begins, and says so" says none "no checkpoint in runs/latest: starts from the beginning"

echo "-- what is printed"
run one 1 "${model[@]}" --val-every 0 --steps 1 --global-batch 1
plural() { ! grep -E "(^|[^0-9])1 (steps|sequences|layers|ranks|micro-batches)" "$1.txt"; }
check "one step is no steps" plural one
check "a short run samples at its end alone" [ "$(grep -c '"sample"' one/train.jsonl)" = 1 ]
check "  which is after training" says one "sample after training"
tells "where it is asked for, it samples before its first step" "sample before training" run asked 1 "${short[@]}" --steps 2 --sample-every 1 --sample-tokens 3
run longer 1 "${short[@]}" --steps 20 --sample-tokens 3
run estimated 1 "${model[@]}" --val-every 0 --steps 6 --sample-every 0 --global-batch 48 --micro-batch 2
# The clock decides what it says, and other work on the machine when that is true: the run is to be six of its steps, and
# the step of the order of those that were trained.
estimate() {
  awk '/ estimate /{ step = $6 == "ms," ? $5 : 1000 * $5; sub(/:/, "", $10); sub(/:/, "", $11); run = $11 == "ms" ? $10 : 1000 * $10 }
    / lr /{ for (i = 2; i <= NF; ++i) if ($i == "ms") { sum += $(i - 1); ++n } }
    END { printf "     estimated %s ms, and %s ms for 6; a step took %.0f ms\n", step, run, sum / n
          exit !(n == 6 && run > 5 * step && run < 7 * step && step < 100 * sum / n && step > sum / n / 100) }' estimated.txt
}
check "the banner estimates a step and the run" estimate
tells "a warm-up that outlasts the run is told" "warning: --warmup-steps 8: the run ends after 2 of them, at the learning rate 0.001" \
  run outlasted 1 "${short[@]}" --steps 2 --warmup-steps 8 --lr 0.004
check "20 steps sample half way" says longer "sample after step 10"
check "  and not before" not says longer "sample before training"
for only in --sample-only --eval-only; do
  "$train" "${model[@]}" $only --sample-tokens 3 --steps 7 --lr 3 >only.txt 2>&1
  check "$only prints nothing of training" eval '! grep -E "warm-up|global batch|micro-batch|^  step" only.txt'
  check "  but what changes nothing" says only "--steps, --lr change nothing: $only trains nothing"
done
"$train" --resume fresh --sample-only --sample-tokens 3 >only.txt 2>&1
check "of a checkpoint, too" eval 'grep -q "option  *--resume fresh" only.txt && ! grep -E "option  *--(steps|checkpoint-every|lr)" only.txt'
quiet() { # RANKS ARGUMENTS…: standard output and error
  ranks "$1" "$train" "${model[@]}" --quiet "${@:2}" >quiet.txt 2>error.txt
}
quiet 1 --global-batch 2 --steps 2 --out silent --resume auto
check "--quiet: a training prints nothing" [ ! -s quiet.txt ]
check "  but warnings, to standard error" says error "warning: --resume auto: no checkpoint in silent"
check "  and writes its log" [ "$(losses silent/train.jsonl | wc -l)" = 2 ]
quiet 1 --sample-only --sample-tokens 20 --prompt 'To be'
"$train" "${model[@]}" --sample-only --sample-tokens 20 --prompt 'To be' | sed -n '/^sample of the model:/,$p' | tail -n +2 >expected.txt
check "--quiet --sample-only: the text alone" cmp quiet.txt expected.txt
quiet 1 --eval-only
check "--quiet --eval-only: the loss alone" eval '[ "$(wc -l <quiet.txt)" = 1 ] && grep -q "^held-out loss" quiet.txt'
"$train" -h >h.txt
check "-h is --help" cmp h.txt <("$train" --help)

echo "-- exit code 2: it does not fit"
ends_with_2() { # ARGUMENTS…
  local code=0
  "$@" >fit.txt 2>&1 || code=$?
  [ "$code" = 2 ] || { cat fit.txt && fail "code $code"; }
  grep -qE "does not fit|nothing of this fits" fit.txt
}
for n in 1 2; do
  check "$n: a dry run" ends_with_2 ranks $n "$train" "${short[@]}" --dry-run --memory-limit 1MiB
  check "$n: with --plan auto" ends_with_2 ranks $n "$train" "${short[@]}" --dry-run --memory-limit 1MiB --plan auto
  check "$n: a run" ends_with_2 ranks $n "$train" "${short[@]}" --memory-limit 1MiB
done
check "a cluster" ends_with_2 "$train" --dry-run --nodes 1 --gpus-per-node 1 --model llama3-8b --seq-len 8192
check "what fits ends with 0" "$train" "${short[@]}" --dry-run --quiet

echo "-- an error within a sample"
mpirun --oversubscribe --bind-to none -n 2 "$train" --layers 1 --sample-only --sample-tokens 100000000 --temperature 0 --prompt abc \
  --tensor-parallel-degree 2 --comm-timeout 2 >sample.txt 2>&1 &
child=$!
wait_for sample.txt "^abc"
for pid in $(pgrep -P "$child"); do
  if tr '\0' '\n' <"/proc/$pid/environ" | grep -x OMPI_COMM_WORLD_RANK=1 >/dev/null; then kill -STOP "$pid"; fi
done
wait "$child" || true
check "it begins on a line of its own" grep -aq "^error on rank 0 of 2: " sample.txt

echo "$checks checks passed"
