#!/usr/bin/env bash
# Covers: the end tells the truth: what could not be saved ends a run with code 3, by name and with the way out, on 1 and 2
# ranks: the last checkpoint, the export, a folder that is gone; a run that is done is left as it is, with code 0, and can be
# longer; several ranks save by the clock
# Timeout: 200
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_PROGRAM=$train
${CC:-cc} -shared -fPIC -O1 -o "$scratch/disk.so" "$root/dev/test/disk_preload.c"
all=$scratch/checkpoints # the library looks at paths with /checkpoints: below this folder, at all that a run writes
mkdir "$all"
short=(--layers 1 --seq-len 32 --global-batch 4 --val-every 0 --sample-every 0)
saving=(--steps 4 --checkpoint-every 2 --checkpoint-async off)

# disk DOES CALL RANKS ARGUMENTS…: the disk does this at that call of the first rank.
disk() { LD_PRELOAD=$scratch/disk.so DISK_DOES=$1 DISK_RANK=0 DISK_CALL=$2 ranks "$3" "$train" "${@:4}"; }
# call_of PATTERN: the number of the first rank's first call whose path has it, of the run that was counted last.
call_of() { awk -v pattern="$1" '$1 == 0 && index($4, pattern) { print $2; exit }' "$scratch/calls"; }
count() { # RANKS ARGUMENTS…
  : >"$scratch/calls"
  LD_PRELOAD=$scratch/disk.so DISK_DOES=count DISK_LOG=$scratch/calls ranks "$1" "$train" "${@:2}" >"$scratch/counted.txt" 2>&1
}
goes_on() { # as the message said
  local how
  how=$(sed -n 's/.*go on from there: //p' "$scratch/out.txt" | head -n 1)
  # shellcheck disable=SC2086  # words
  [ -n "$how" ] && exits 0 ${how/#.\/train_llama/$train}
}
listing() { find "$1" runs -printf '%p %s %T@ %l\n' | sort; }
untouched() { [ "$(listing "$1")" = "$before" ]; }

for n in 1 2; do
  count $n "${short[@]}" "${saving[@]}" --out "$all/counted-$n"
  first=$(call_of step-00000002) last=$(call_of step-00000004) export=$(call_of /export)

  echo "-- $n: checkpoints"
  run=$all/none-$n
  check "none could be saved" exits 3 disk full "$first" $n "${short[@]}" --export off "${saving[@]}" --out "$run"
  check "  which is said" said "the last checkpoint could not be saved; no checkpoint exists" "make room on the disk"
  check "  after the last step" [ "$(losses "$run/train.jsonl" | wc -l)" = 4 ]
  run=$all/last-$n
  check "the last one" exits 3 disk full "$last" $n "${short[@]}" --export off "${saving[@]}" --out "$run"
  check "  which is said, and what is left" said "could not be saved; the newest checkpoint is $run/checkpoints/step-00000002"
  check "  the command that goes on does" goes_on
  check "  and saves it" [ -e "$run/checkpoints/step-00000004/manifest.json" ]
  run=$all/first-$n
  check "one that a later one makes up for" exits 0 disk once "$first" $n "${short[@]}" --export off "${saving[@]}" --out "$run"
  check "  is a warning" said "no checkpoint of step 2"

  echo "-- $n: exports"
  run=$all/exported-$n
  check "the last checkpoint alone is lost" exits 3 disk once "$last" $n "${short[@]}" "${saving[@]}" --out "$run"
  check "  which is said" said "could not be saved, though the weights are exported; the newest checkpoint is"
  check "  the export is there" [ -s "$run/export/model.safetensors" ]
  run=$all/export-$n
  check "the export alone" exits 3 disk full "$export" $n "${short[@]}" "${saving[@]}" --out "$run"
  check "  which is said, and what is left" said "the weights after step 4 could not be exported: cannot" \
    "the newest checkpoint is $run/checkpoints/step-00000004"
  check "  the command that goes on exports" goes_on
  check "  all of it" cmp "$run/export/model.safetensors" "$all/counted-$n/export/model.safetensors"

  echo "-- $n: a run that is done"
  before=$(listing "$run")
  check "is left as it is" exits 0 ranks $n "$train" --resume auto --out "$run"
  check "  which is said" said "the run in $run is done: 4 steps"
  check "  also the second time" exits 0 ranks $n "$train" --resume auto --out "$run"
  check "  nothing is touched" untouched "$run"
  check "a start that is refused" exits 3 disk full 1 $n --resume auto --steps 6 --out "$run"
  check "  leaves the export where it is" [ -s "$run/export/model.safetensors" ]
  echo "-- $n: a folder that is gone"
  start=(env LLMC_THREADS=1 "$train")
  if [ $n = 2 ]; then start=(env LLMC_THREADS=1 mpirun --oversubscribe --bind-to none -n 2 "$train"); fi
  for how in removed $([ $n = 2 ] || echo moved emptied); do
    run=$scratch/$how-$n
    begin "$how-$n" '^step' "${start[@]}" "${short[@]}" --steps 1000000 --export off --out "$run"
    case $how in
      removed) until rm -rf "$run" 2>/dev/null; do :; done ;;
      moved) mv "$run" "$run.elsewhere" ;;
      emptied) rm "$run/train.jsonl" ;;
    esac
    check "$how while it trains: the run ends" ends 60
    check "  with code 3 (it is $code)" [ "$code" = 3 ]
    check "  and says so" says "$how-$n" "the run's folder $run was removed, moved or replaced"
  done
done

echo "-- a run that is done, whatever its newest checkpoint is"
run stopped 1 "${short[@]}" --steps 5 --checkpoint-every 2
rm -r "$(checkpoint stopped 5)"
run nothing 1 "${short[@]}" --steps 5 --export off
for name in stopped nothing; do # as one that was stopped and went on, and has --checkpoint-every 0
  before=$(listing "$scratch/$name")
  check "$name: is left as it is" exits 0 "$train" --resume auto --out "$scratch/$name" --checkpoint-every 0
  check "  which is said" said "the run in $scratch/$name is done: 5 steps"
  check "  nothing is touched" untouched "$scratch/$name"
done
for _ in 1 2; do # its newest checkpoint is of step 4, then of step 5
  rm "$scratch/stopped/export/README.md" # the last file of an export
  check "an export that is not whole is made again" exits 0 "$train" --resume auto --out "$scratch/stopped"
  check "  whole" [ -s "$scratch/stopped/export/README.md" ]
  check "  with a checkpoint after the last step" [ -d "$(checkpoint stopped 5)" ]
done
run unsaved 1 "${short[@]}" --steps 2
rm -r "$scratch/unsaved/export/README.md"
check "without a checkpoint, the run begins again" exits 0 "$train" --resume auto --out "$scratch/unsaved"
check "  and exports" [ -s "$scratch/unsaved/export/README.md" ]

echo "-- longer runs"
check "a run that is done and has no checkpoint says how a longer one comes about" exits 0 "$train" --resume auto \
  --out "$scratch/nothing"
check "  which is said" said "a longer one: begin it again with --steps N" "--checkpoint-every N leaves one at the end"
run lasting 2 "${short[@]}" --steps 5
check "several ranks leave a checkpoint at the end" [ -e "$(checkpoint lasting 5)/manifest.json" ]
check "  of which the banner tells" says lasting "checkpoints every 30 minutes, and at the end; from a copy in the host's memory"
resume lasting 2 auto --steps 7
check "  and can be longer" [ "$(losses "$scratch/lasting/train.jsonl" | wc -l)" = 7 ]
check "  without it there is no copy" says_not nothing "host snapshot"
check "one rank leaves none, and says so" says nothing "checkpoints none but at Ctrl-C"
run narrow 2 "${short[@]}" --steps 2 --host-memory-limit "$(awk '/device, total/ { d = $3 } END { print 2 * d + 1 "MiB" }' "$scratch/lasting.txt")"
check "without room for a copy, the ranks save without one, and say so" says narrow "there is no room for a copy in the host's memory"
check "  at the end, too" [ -e "$(checkpoint narrow 2)/manifest.json" ]
run clocked 2 "${short[@]}" --steps 12 --checkpoint-minutes 1e-9 --keep-checkpoints 0 # always due
check "a checkpoint is saved when the clock says, and at the end" [ "$(find "$scratch/clocked/checkpoints" -name 'step-*[0-9]' | wc -l)" -ge 2 ]
run plain 2 "${short[@]}" --steps 12 --checkpoint-minutes 0
check "  and changes no bit" same clocked plain
check "  and 0 minutes save none" [ ! -e "$scratch/plain/checkpoints" ]

echo "-- exports of before"
run again 1 "${short[@]}" --steps 3 --checkpoint-every 2 --keep-checkpoints 0
for steps in 4 5; do
  rm -r "$scratch"/again/checkpoints/step-0000000[345]
  resume again 1 auto --steps $steps --lr 0.01
done
check "each has a name of its own" cat "$scratch"/again/export.before-step-2{,-2}/README.md
echo "$checks checks passed"
