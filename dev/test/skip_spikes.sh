#!/usr/bin/env bash
# Covers: --skip-spikes: the run goes on after a poisoned batch, also from a checkpoint in the middle of a window, or ends with
# exit code 6 and names rank, micro-batch, file and tokens; a skipped step leaves weights and moments as they were; log, banner
# and end tell; on 1 and 2 ranks, with graphs and with delayed FP8
# Timeout: 600
# Turn: 3
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

# A text with 32 bytes from 3000 on that occur nowhere else. They are in two sequences of 16 tokens each; by the seed, the
# run meets them after 200 of its 245 steps. With this warm-up no other norm of steps 65 on is more than 6 deviations above those
# before it, and theirs are more than 30, on each of three processors.
head -c 16000 "$root/dev/data/tinyshakespeare.txt" |
  python3 -c 'import sys; b = bytearray(sys.stdin.buffer.read()); b[3000:3032] = bytes(128 + i * 37 % 128 for i in range(32)); sys.stdout.buffer.write(b)' \
    >"$scratch/text.txt"
tail -c 2000 "$root/dev/data/tinyshakespeare.txt" >"$scratch/held.txt"
heads_model >"$scratch/model.json"
options=(--model "$scratch/model.json" --seq-len 16 --global-batch 4 --micro-batch 2 --steps 245 --warmup-steps 60 --val-every 0
  --train-data "$scratch/text.txt" --val-data "$scratch/held.txt")
# skipped NAME: the steps that the run's log calls skipped.
skipped() { sed -n 's/^{"step":\([0-9]*\),.*"skipped":"[a-z, ]*".*/\1/p' "$scratch/$1/train.jsonl" | xargs; }
# weights_of NAME STEP: the weights and moments of its checkpoint, by their names, without what the window has.
weights_of() {
  python3 - "$(checkpoint "$1" "$2")" <<'END'
import glob, hashlib, json, sys
for path in sorted(glob.glob(sys.argv[1] + "/rank-*.safetensors")):
    data = open(path, "rb").read()
    length = int.from_bytes(data[:8], "little")
    for name, entry in sorted(json.loads(data[8:8 + length]).items()):
        if not name.startswith("other/spike") and name != "__metadata__":
            begin, end = entry["data_offsets"]
            print(name, hashlib.sha256(data[8 + length + begin:8 + length + end]).hexdigest())
END
}
same_weights_of() { [ -n "$(weights_of "$1" "$2")" ] && [ "$(weights_of "$1" "$2")" = "$(weights_of "$3" "$4")" ]; }

for n in 1 2; do
  more=()
  if [ $n = 2 ]; then more=(--cuda-graphs --zero-stage 3 --dtype bf16 --fp8 delayed); fi
  skips=("${more[@]}" --skip-spikes 15)
  run whole$n $n "${skips[@]}" --checkpoint-every 60
  steps=$(skipped whole$n) first=${steps%% *}
  check "$n rank(s): two steps are skipped, and the run goes on" [ "$(wc -w <<<"$steps")" = 2 ]
  check "$n rank(s): after the window has its first steps" [ "$first" -gt 64 ]
  check "$n rank(s): the line of the step" grep -q "^.*step $first/245 .* | skipped: " "$scratch/whole$n.txt"
  check "$n rank(s): the banner" says whole$n "more than 15 standard deviations above those of the last 128 steps"
  check "$n rank(s): the end" says whole$n "skipped 2 steps: ${steps/ /, }"

  # Step 180 is in the middle of a window: 52 of its 128 steps come from before the checkpoint.
  resume gone-on$n $n "$(checkpoint whole$n 180)"
  check "$n rank(s): gone on in the middle of a window" [ "$(skipped gone-on$n)" = "$steps" ]
  check "$n rank(s):   with the same bits" same_weights gone-on$n whole$n
  check "$n rank(s):   and the same log" alike_lines whole gone-on <(log whole$n | grep '"grad_norm"' | tail -n 65) \
    <(log gone-on$n | grep '"grad_norm"')

  # Without the option the step makes its update.
  run without$n $n "${more[@]}" --checkpoint-every 180
  check "$n rank(s): nothing is skipped without the option" [ -z "$(skipped without$n)" ]
  check "$n rank(s):   and the weights differ" not same_weights without$n whole$n
  # A checkpoint without a window, as of a program that knows none: an empty one begins, which step 205 does not fill.
  resume late$n $n "$(checkpoint without$n 180)" --skip-spikes 15
  check "$n rank(s): from a checkpoint without a window" same_weights late$n without$n

  echo "-- $n: --bad-steps-limit"
  check "$n rank(s): code 6" exits 6 ranks $n "$train" --out "$scratch/limit$n" "${options[@]}" "${skips[@]}" --bad-steps-limit 1 \
    --checkpoint-every $((first - 1))
  check "$n rank(s): what is named" said "skipped steps in a row: 1, up to step $first (--bad-steps-limit 1)" \
    "the weights are those after step $((first - 1))" "one sequence stands out by its gradients"
  check "$n rank(s): the micro-batch" grep -q "in micro-batch [12] of $((2 / n))$" "$scratch/out.txt"
  check "$n rank(s): the place in the file" grep -Eq "data: sequence [12] of 2: tokens (299|30[0-3])[0-9] to 30[0-9]{2} of $scratch/text.txt$" \
    "$scratch/out.txt"
  [ $n = 1 ] || check "two ranks: the rank" grep -q "it is on rank [01] of 2, in micro-batch" "$scratch/out.txt"
  check "$n rank(s): the step left the state as it was" same_weights_of limit$n "$first" limit$n $((first - 1))
  check "$n rank(s): a run that goes on meets the next spike" exits 6 ranks $n "$train" --out "$scratch/limit$n" --resume auto
  check "$n rank(s):   tells of the first one" said "until now skipped 1 step: $first"
  check "$n rank(s):   and goes on to the end" exits 0 ranks $n "$train" --out "$scratch/limit$n" --resume auto
  check "$n rank(s):   tells of both" said "skipped 2 steps: ${steps/ /, }"
  check "$n rank(s):   with the bits of the run that did not end" same_weights limit$n whole$n
done

echo "$checks checks passed"
