#!/usr/bin/env bash
# Covers: promise 4: saved on each mesh and loaded on each other: the same weights and moments, the same order of the
# data; on the same mesh, the same losses to the last bit; stopped and gone on; damaged ones rolled back; a full disk on one
# rank, a folder that may not be read
# Timeout: 900
# Alone: its ranks take all cores
#
# CHECKPOINTS=every: each pair of meshes; else some, chosen by the commit.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_PROGRAM=$train

odd_model
head -c 30000 "$scratch/letters.txt" >"$scratch/fewer.txt"
options=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --global-batch 24
  --seq-len 32 --lr 6e-3 --warmup-steps 3 --val-every 4 --sample-every 0)
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --out "$scratch/$1" "${@:3}" >"$scratch/$1.txt" 2>&1 || { cat "$scratch/$1.txt" && fail "the run $1"; }
}
step() { echo "$scratch/$1/checkpoints/step-$(printf %08d "$2")"; }
log() { without_times "$scratch/$1/train.jsonl"; }
same_log() { cmp <(log "$1") <(log "$2"); }
# ends_alike A B: B began after step 4 of A.
ends_alike() { cmp <(log "$1" | tail -n 6) <(log "$2"); }
# near A B: the same within 1e-5. Another order of the data is off by 1e-2 at once.
near() {
  awk 'NR == FNR { a[$1] = $2; next } { d = ($2 - a[$1]) / $2; if (d < 0) d = -d; if (d > w) w = d; ++n }
       END { exit !(n == 4 && w <= 1e-5) }' <(losses "$scratch/$1/train.jsonl") <(losses "$scratch/$2/train.jsonl")
}

echo "-- the resume matrix"
# name, ranks, ZeRO stage, degrees of sharding, tensor and context parallelism
meshes=("one 1 0 0 1 1" "ddp 2 0 0 1 1" "zero1 2 1 0 1 1" "zero2 3 2 0 1 1" "zero3 4 3 0 1 1" "hybrid 4 3 2 1 1"
  "tensor 2 0 0 2 1" "tensor-zero3 4 3 0 2 1" "context 2 3 0 1 2" "tensor-context 4 1 0 2 2")
for mesh in "${meshes[@]}"; do
  read -r name n stage degree tensor context <<<"$mesh"
  run "$name" "$n" "${options[@]}" --steps 8 --zero-stage "$stage" --hybrid-shard-degree "$degree" \
    --tensor-parallel-degree "$tensor" --context-parallel-degree "$context" --checkpoint-every 4
done
run unsaved 2 "${options[@]}" --steps 8 --zero-stage 1
check "saving changes no bit of the losses" same_log unsaved zero1
pairs=()
for from in "${meshes[@]}"; do for to in "${meshes[@]}"; do pairs+=("$from $to"); done; done
if [ "${CHECKPOINTS:-}" != every ]; then
  mapfile -t pairs < <(printf '%s\n' "${pairs[@]}" | some_of 6)
fi
for pair in "${pairs[@]}"; do
  read -r a _ _ _ _ _ b n stage degree tensor context <<<"$pair"
  mkdir "$scratch/again"
  ranks "$n" "$build/test/recheckpoint" "$(step "$a" 4)" "$scratch/again" "$stage" "$degree" "$tensor" "$context"
  check "saved on $a, loaded on $b, saved again: the same bits" \
    "$build/test/recheckpoint" "$(step "$a" 4)" "$scratch/again/step-00000004"
  run on "$n" --resume "$(step "$a" 4)" --zero-stage "$stage" --hybrid-shard-degree "$degree" \
    --tensor-parallel-degree "$tensor" --context-parallel-degree "$context"
  if [ "$a" = "$b" ]; then check "  gone on: the log to the last bit" ends_alike "$a" on; else check "  gone on: its losses" near "$a" on; fi
  rm -rf "$scratch/on" "$scratch/again"
done

echo "-- stopped, and gone on in place"
stop() { # NAME SIGNAL COMMAND…: after its first steps
  setsid env --default-signal=INT "${@:3}" "${options[@]}" --steps 100000 --out "$scratch/$1" >"$scratch/$1.txt" 2>&1 &
  child=$!
  for _ in $(seq 300); do if grep -q "^step" "$scratch/$1.txt"; then break; fi && sleep 0.1; done
  kill "-$2" "$child"
  code=0
  wait "$child" || code=$?
  at=$(losses "$scratch/$1/train.jsonl" | tail -n 1 | cut -d' ' -f1)
}
saved() { [ "$code" = 0 ] && grep -q "asked to stop" "$scratch/$1.txt" && grep -q "^saved $scratch/$1/checkpoints/step-" "$scratch/$1.txt"; }
gone_on() {
  [ "$(losses "$scratch/$1/train.jsonl" | cut -d' ' -f1 | tr '\n' ' ')" = "$(seq -s ' ' $((at + 3))) " ] &&
    grep -q "goes on  *after step $at of" "$scratch/$1.txt"
}
go_on() { run "$1" "$2" --resume auto --steps $((at + 3)) --schedule constant --val-every 0 --export off; }
stop interrupted INT scripts/run -n 2 --zero-stage 3
check "Ctrl-C below scripts/run: it saves, and ends with 0 (it was $code)" saved interrupted
go_on interrupted 2
check "--resume auto: from step $at on in the same folder, each step once in its log" gone_on interrupted
for signal in USR1 TERM; do
  stop $signal $signal "$train"
  check "SIG$signal: it saves, and ends with 0 (it was $code)" saved $signal
  go_on $signal 3
  check "  gone on with 3 ranks from step $at" gone_on $signal
done

echo "-- damaged checkpoints"
damaged() { # NAME: a copy of a run whose last checkpoint is of step 8, and one of step 4
  rm -rf "$scratch/$1"
  cp -r "$scratch/zero1" "$scratch/$1"
  damage=$(step "$1" 8)
}
rolled_back() { grep -q "$(basename "$damage") is refused" "$scratch/$1.txt" && grep -q "$2" "$scratch/$1.txt" && grep -q "after step 4 of" "$scratch/$1.txt" && same_log zero1 "$1" && [ -e "$damage.refused" ]; }
damaged flipped
printf '\x55' | dd of="$damage/rank-00001-of-00002.safetensors" bs=1 seek=5000 conv=notrunc status=none
run flipped 2 --resume auto
check "a flipped byte: the one before is taken, and the steps are the same again" rolled_back flipped checksum
damaged cut
truncate -s -1 "$damage/rank-00000-of-00002.safetensors"
run cut 2 --resume auto
check "a byte cut off" rolled_back cut "as the manifest says"
damaged gone
rm "$damage/state.json"
run gone 2 --resume auto
check "a file is gone" rolled_back gone "No such file"
refused "named itself, a damaged one is an error" "has the checksum" "$train" --resume "$scratch/flipped/checkpoints/step-00000008.refused" --out "$scratch/x"
refused "a folder without checkpoints" "there is no complete checkpoint" "$train" --resume "$scratch" --out "$scratch/x"
refused "another model" "its num_hidden_layers is 3, here it is 2" "$train" --resume "$(step one 4)" --layers 2 --out "$scratch/x"
refused "another order of the data" "--seed 7 (was 1337)" "$train" --resume "$(step one 4)" --seed 7 --out "$scratch/x"
refused "fewer steps than are done" "4 steps are done, and the run has 3" "$train" --resume "$(step one 4)" --steps 3 --out "$scratch/x"
refused "other data" "here there are" "$train" --resume "$(step one 4)" --train-data "$scratch/fewer.txt" --out "$scratch/x"
check "none of these began a run" [ ! -e "$scratch/x" ]
if [ "$(id -u)" = 0 ]; then # to whom a folder's permissions mean nothing: as nobody, where a copy of the program can be read
  chmod 755 "$scratch"
  cp "$train" "$scratch/program"
  cp -r "$(step one 4)" "$scratch/closed"
  chmod 700 "$scratch/closed"
  refused "a folder that may not be read" "ermission denied" setpriv --reuid=65534 --regid=65534 --clear-groups "$scratch/program" --resume "$scratch/closed" --out "$scratch/x"
else
  cp -r "$(step one 4)" "$scratch/closed"
  chmod 000 "$scratch/closed"
  refused "a folder that may not be read" "ermission denied" "$train" --resume "$scratch/closed" --out "$scratch/x"
  chmod 700 "$scratch/closed"
fi

echo "-- gone on only to look, and with other options"
looked() { ranks 2 "$train" --resume "$(step zero1 8)" "$@" --sample-tokens 20 --prompt '1 2' >"$scratch/looked.txt" 2>&1 && grep -qE "$pattern" "$scratch/looked.txt"; }
pattern="held-out loss $(sed -n 's/.*"val_loss":\([0-9]\.[0-9]\{4\}\).*/\1/p' "$scratch/zero1/train.jsonl" | tail -n 1)" # rounded down here
pattern=${pattern%?}
check "--eval-only of a checkpoint: the held-out loss of its run ($pattern)" looked --eval-only
pattern="sample of the model"
check "--sample-only of a checkpoint" looked --sample-only
printf '{"train_tokens": 9216}' >"$scratch/length.json"
run longer 2 --resume "$(step zero1 8)" --config "$scratch/length.json" --lr 1e-3
at_step() { [ "$(losses "$scratch/longer/train.jsonl" | tail -n 1 | cut -d' ' -f1)" = 12 ]; }
check "a config file's length and a smaller --lr win" at_step

echo "-- one rank's disk is full"
${CC:-cc} -shared -fPIC -O1 -o "$scratch/disk.so" dev/test/disk_preload.c
LD_PRELOAD=$scratch/disk.so DISK_DOES=full DISK_RANK=1 DISK_CALL=14 \
  run full 2 "${options[@]}" --zero-stage 3 --steps 16 --checkpoint-every 2
went_on() {
  [ "$(losses "$scratch/full/train.jsonl" | wc -l)" = 16 ] && grep -q "no checkpoint of step.*" "$scratch/full.txt" &&
    grep -q "warning on rank 1 of 2" "$scratch/full.txt" && [ -e "$(step full 2)/manifest.json" ] &&
    ! ls -d "$scratch/full/checkpoints/"*.partial 2>/dev/null
}
check "the run goes on, the rank says so, the checkpoint before stays" went_on

echo "-- consolidated"
consolidated() { scripts/consolidate "$scratch/$1" "$scratch/$1-whole" >/dev/null && cmp "$scratch/$1-whole/model.safetensors" "$scratch/$1/export/model.safetensors"; }
for name in one hybrid; do check "$name: the bits of its export" consolidated $name; done
echo "$checks checks passed"
