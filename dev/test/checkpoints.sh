#!/usr/bin/env bash
# Covers: promise 4: saved on each mesh and loaded on each other: the same weights and moments, the same order of the
# data; on the same mesh, the same losses to the last bit; stopped and gone on; damaged ones rolled back; a full disk on one
# rank, a folder that may not be read
# Timeout: 900
#
# CHECKPOINTS=every: each pair of meshes; else some, chosen by the commit.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_PROGRAM=$train

odd_model
head -c 30000 "$scratch/letters.txt" >"$scratch/fewer.txt"
options=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --global-batch 12 --seq-len 16 --lr 6e-3
  --warmup-steps 3 --val-every 4 --val-tokens 256 --sample-every 0)

echo "-- the resume matrix"
# name, ranks, ZeRO stage, degrees of sharding, tensor and context parallelism
meshes=("one 1 0 0 1 1" "ddp 2 0 0 1 1" "zero1 2 1 0 1 1" "zero2 3 2 0 1 1" "zero3 4 3 0 1 1" "hybrid 4 3 2 1 1"
  "tensor 2 0 0 2 1" "tensor-zero3 4 3 0 2 1" "context 2 3 0 1 2" "tensor-context 4 1 0 2 2")
for mesh in "${meshes[@]}"; do
  read -r name n stage degree tensor context <<<"$mesh"
  run "$name" "$n" --steps 8 --zero-stage "$stage" --hybrid-shard-degree "$degree" \
    --tensor-parallel-degree "$tensor" --context-parallel-degree "$context" --checkpoint-every 4
done
run unsaved 2 --steps 8 --zero-stage 1
check "saving changes no bit of the losses" same_log unsaved zero1
pairs=()
for from in "${meshes[@]}"; do for to in "${meshes[@]}"; do pairs+=("$from $to"); done; done
if [ "${CHECKPOINTS:-}" != every ]; then
  mapfile -t pairs < <(printf '%s\n' "${pairs[@]}" | some_of 5)
fi
for pair in "${pairs[@]}"; do
  read -r a _ _ _ _ _ b n stage degree tensor context <<<"$pair"
  mkdir "$scratch/again"
  ranks "$n" "$build/test/reshard_checkpoint" "$(checkpoint "$a" 4)" "$scratch/again" "$stage" "$degree" "$tensor" "$context"
  check "saved on $a, loaded on $b, saved again: the same bits" \
    "$build/test/reshard_checkpoint" "$(checkpoint "$a" 4)" "$scratch/again/step-00000004"
  resume on "$n" "$(checkpoint "$a" 4)" --zero-stage "$stage" --hybrid-shard-degree "$degree" \
    --tensor-parallel-degree "$tensor" --context-parallel-degree "$context"
  # Another order of the data is off by 1e-2 at once.
  check "  gone on: its losses" near "$a" on 4 1e-5 1e-5
  if [ "$a" = "$b" ]; then check "  to the last bit" ends_alike "$a" on 6; fi
  rm -rf "$scratch/on" "$scratch/again"
done

echo "-- stopped, and gone on in place"
stop() { # NAME SIGNAL COMMAND…: after its first steps
  begin "$1" "^step" "${@:3}" "${options[@]}" --steps 100000 --out "$scratch/$1"
  kill "-$2" "$child"
  ends 60 || fail "$1 does not end"
  at=$(numbers "$1" loss | tail -n 1 | cut -d' ' -f1)
}
saved() { [ "$code" = 0 ] && says "$1" "asked to stop" && says "$1" "saved $scratch/$1/checkpoints/step-"; }
gone_on() {
  [ "$(numbers "$1" loss | cut -d' ' -f1 | tr '\n' ' ')" = "$(seq -s ' ' $((at + 3))) " ] &&
    grep -q "goes on  *after step $at of" "$scratch/$1.txt"
}
go_on() { resume "$1" "$2" auto --steps $((at + 3)) --schedule constant --val-every 0 --export off; }
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
damaged() { # NAME TEXT COMMAND…: a run's last checkpoint after this command
  cp -r "$scratch/zero1" "$scratch/$1"
  damage=$(checkpoint "$1" 8)
  (cd "$damage" && "${@:3}")
  resume "$1" 2 auto
  check "$1: the checkpoint before is taken, and the steps are the same again" rolled_back "$1" "$2"
}
rolled_back() {
  says "$1" "step-00000008 is refused" && says "$1" "$2" && says "$1" "after step 4 of" && same_log zero1 "$1" &&
    [ -e "$damage.refused" ]
}
flip() { printf '\x55' | dd of="$1" bs=1 seek=5000 conv=notrunc status=none; }
damaged flipped checksum flip rank-00001-of-00002.safetensors
damaged cut "as the manifest says" truncate -s -1 rank-00000-of-00002.safetensors
damaged gone "No such file" rm state.json
damaged option "has the checksum" sed -i 's/"lr": 0.006/"lr": 0.007/' state.json
refused "named itself, a damaged one is an error" "has the checksum" "$train" --resume "$scratch/flipped/checkpoints/step-00000008.refused" --out "$scratch/x"
refused "a folder without checkpoints" "there is no complete checkpoint" "$train" --resume "$scratch" --out "$scratch/x"
while IFS='|' read -r what text words; do
  # shellcheck disable=SC2086  # words
  refused "$what" "$text" "$train" --resume "$(checkpoint one 4)" $words --out "$scratch/x"
done <<END
another model|its num_hidden_layers is 3, here it is 2|--layers 2
another order of the data|--seed 7 (was 1337)|--seed 7
fewer steps than are done|4 steps are done, and the run has 3|--steps 3
other data|here there are|--train-data $scratch/fewer.txt
END
check "none of these began a run" [ ! -e "$scratch/x" ]
cp -r "$(checkpoint one 4)" "$scratch/closed"
as_nobody=() program=$train
if [ "$(id -u)" = 0 ]; then # to whom a folder's permissions mean nothing: as nobody, who can read a copy of the program
  as_nobody=(setpriv --reuid=65534 --regid=65534 --clear-groups) program=$scratch/program
  chmod 755 "$scratch"
  cp "$train" "$program"
fi
chmod "$([ "$(id -u)" = 0 ] && echo 700 || echo 000)" "$scratch/closed"
refused "a folder that may not be read" "ermission denied" \
  "${as_nobody[@]}" "$program" --resume "$scratch/closed" --out "$scratch/x"
chmod 700 "$scratch/closed"

echo "-- gone on only to look, and with other options"
resume measured 2 "$(checkpoint zero1 8)" --eval-only
loss=$(numbers zero1 val_loss | tail -n 1 | cut -d' ' -f2)
check "--eval-only of a checkpoint: the held-out loss of its run ($loss)" \
  same_figures <(printf 'held-out loss %.4f\n' "$loss") <(grep -o 'held-out loss [0-9.]*' "$scratch/measured.txt" | tail -n 1)
resume sampled 2 "$(checkpoint zero1 8)" --sample-only --sample-tokens 20 --prompt '1 2'
check "--sample-only of a checkpoint" says sampled "sample of the model"
printf '{"train_tokens": 2304}' >"$scratch/length.json"
resume longer 2 "$(checkpoint zero1 8)" --config "$scratch/length.json" --lr 1e-3
check "a config file's length and a smaller --lr win" [ "$(numbers longer loss | tail -n 1 | cut -d' ' -f1)" = 12 ]

echo "-- one rank's disk is full"
${CC:-cc} -shared -fPIC -O1 -o "$scratch/disk.so" dev/test/disk_preload.c
full() {
  LD_PRELOAD=$scratch/disk.so DISK_DOES=full DISK_RANK=1 DISK_CALL=14 ranks 2 "$train" "${options[@]}" --zero-stage 3 --steps 16 \
    --checkpoint-every 2 --out "$scratch/full" >"$scratch/full.txt" 2>&1
}
check "the run goes to its end, with code 3" exits 3 full
went_on() {
  [ "$(numbers full loss | wc -l)" = 16 ] && says full "no checkpoint of step" && says full "warning on rank 1 of 2" &&
    [ -e "$(checkpoint full 2)/manifest.json" ] && ! ls -d "$scratch/full/checkpoints/"*.partial 2>/dev/null
}
check "  every step is trained, the rank says so, the checkpoint before stays" went_on

echo "-- consolidated"
consolidated() { scripts/consolidate "$scratch/$1" "$scratch/$1-whole" >/dev/null && cmp "$scratch/$1-whole/model.safetensors" "$scratch/$1/export/model.safetensors"; }
for name in one hybrid; do check "$name: the bits of its export" consolidated $name; done
echo "$checks checks passed"
