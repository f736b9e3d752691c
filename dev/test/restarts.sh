#!/usr/bin/env bash
# Covers: promise 4: scripts/run --restarts: ranks that are killed, twice, a full disk, one that cannot be read, and a step that is not finite, whose
# samples are left out, end with the bits of a run without these; what the user must mend is tried once; restarts without
# a new checkpoint are counted, one resets the count and the pause, which Ctrl-C ends; spare hosts
# Timeout: 240
#
# Ranks are real, but where nothing but the exit code matters: there a script plays the program. A stand-in for mpirun
# plays hosts that fail.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
unset MPIRUN_FLAGS "${!LLMC_@}" "${!SLURM_@}"
export LLMC_THREADS=1
${CC:-cc} -shared -fPIC -O1 -o "$scratch/disk.so" dev/test/disk_preload.c
mkdir "$scratch/bin" && printf '#!/bin/sh\necho libmpi.so\n' >"$scratch/bin/ldd" && chmod +x "$scratch/bin/ldd" # scripts/run asks it
export PATH=$scratch/bin:$PATH

# player NAME: a program of this name whose body, read here, knows how often it was started ($n, of rank 1 of several).
player() {
  cat >"$scratch/$1" <<SH
#!/usr/bin/env bash
n=0
if [ "\${OMPI_COMM_WORLD_RANK:-1}" = 1 ]; then
  echo >>"$scratch/$1.starts"
  n=\$(wc -l <"$scratch/$1.starts")
fi
scratch=$scratch train=$train out=$scratch/$1.run
$(cat)
SH
  chmod +x "$scratch/$1"
}
# restarted NAME CODE ARGUMENTS…: scripts/run with this player ends with the code; $scratch/NAME.txt has what it printed.
restarted() {
  local code=0
  LLMC_PROGRAM=$scratch/$1 timeout -k 20 100 scripts/run "${@:3}" --out "$scratch/$1.run" >"$scratch/$1.txt" 2>&1 </dev/null || code=$?
  [ "$code" = "$2" ] || { cat "$scratch/$1.txt" && echo "exit code $code instead of $2" && return 1; }
}
starts() { [ "$(wc -l <"$scratch/$1.starts")" = "$2" ]; }  # NAME TIMES
# pauses NAME SECONDS…: before each restart.
pauses() { [ "$(sed -nE 's/^scripts\/run: exit code .* in ([0-9]+) s; .*/\1/p' "$scratch/$1.txt" | xargs)" = "${*:2}" ]; }

echo "-- ranks that are killed, a full disk"
small=(--layers 1 --seq-len 16 --global-batch 4 --val-every 0 --sample-every 0 --steps 8 --checkpoint-every 2 --checkpoint-async off)
: >"$scratch/calls"
options=("${small[@]}" --zero-stage 1)
LD_PRELOAD=$scratch/disk.so DISK_DOES=count DISK_LOG=$scratch/calls run straight 2
call=$(awk '$1 == 1 && /step-00000004/ { print $2; exit }' "$scratch/calls")
player killed <<END_OF_PLAYER
if [ \$n = 1 ]; then kill -KILL \$\$; fi
if [ \$n = 2 ]; then export LD_PRELOAD=\$scratch/disk.so DISK_DOES=kill DISK_CALL=$((call + 1)) DISK_RANK=1; fi
exec "\$train" "\$@"
END_OF_PLAYER
check "two ranks: one is killed at once, and one while it saves" restarted killed 0 -n 2 --restarts 1 --restart-pause 0 "${options[@]}"
check "  of three starts the last one ends well: a new checkpoint has reset the count" starts killed 3
check "  losses and weights are those of a run that was never killed" same straight killed.run
check "  a line tells why, from where, and how many tries are left" says killed \
  "exit code 137 (signal 9 ended a rank; 9 is also what the system does where memory runs out): goes on from $scratch/killed.run/checkpoints/step-00000002 in 0 s; 0 more tries are left"
check "  and from the beginning, before there was a checkpoint" says killed "goes on from the beginning in 0 s"

player full <<'END'
if [ $n = 1 ]; then export LD_PRELOAD=$scratch/disk.so DISK_DOES=full DISK_CALL=8 DISK_RANK=0; fi
exec "$train" "$@"
END
options=("${small[@]}")
run alone 1
check "a full disk that has room again" restarted full 0 -n 1 --restarts 1 --restart-pause 0 "${options[@]}"
check "  is told" says full "exit code 3 (a checkpoint or the export could not be saved)"
check "  and losses and weights are the same" same alone full.run

echo "-- a disk that cannot be read for a while"
echo unreadable >"$scratch/ask"
rm -r "$scratch/straight/export"
for step in 6 8; do rm -r "$(checkpoint straight $step)"; done
unreadable() {
  LD_PRELOAD=$scratch/disk.so DISK_DOES=asked DISK_ASK=$scratch/ask exits 5 ranks 2 "$train" --out "$scratch/straight" --resume auto
}
check "it ends with code 5, so that it is tried again" unreadable
check "  and names file and reason" said "checkpoint $(checkpoint straight 4) cannot be read now" "/state.json: Input/output error"
check "  no checkpoint is refused for it" eval '! ls "$scratch"/straight/checkpoints | grep -q refused'
resume straight 2 auto
check "when it can be read, the run goes on from there" says straight "after step 4 of"
check "  to the bits of one that met nothing" same straight killed.run

echo "-- what is tried again"
resumes="to go on: scripts/run -n 2 --restarts 2 --out $scratch/stopped.run --resume auto"
player stopped <<'END'
exec "$train" "$@"
END
check "a run that stops as it was told" restarted stopped 0 -n 2 --restarts 2 "${small[@]}" --stop-after 1e-9
check "  says how to go on, with restarts" says stopped "$resumes"
player wrong <<'END'
exec "$train" "$@"
END
check "a wrong option ends with code 64" restarted wrong 64 --restarts 3 --restart-pause 0 --lr nonsense
check "  is tried once" starts wrong 1
check "a model that does not fit, too: code 2" restarted wrong 2 --restarts 3 --restart-pause 0 --memory-limit 1MiB
check "  is tried once" starts wrong 2
player altered <<'END'
mkdir -p "$out/checkpoints/step-00000008"
exit 64
END
check "a file that the run read and somebody changed" restarted altered 64 --restarts 3 --restart-pause 0
check "  ends it, though it has a checkpoint" starts altered 1
player lost <<'END'
exit 5
END
check "no progress: the last exit code" restarted lost 5 --restarts 2 --restart-pause 0
check "  after two restarts" starts lost 3
player unknown <<'END'
[ $n = 1 ] || mkdir -p "$out/checkpoints/step-00000008"
exit 1
END
check "code 1 of a run without a checkpoint" restarted unknown 1 --restarts 2 --restart-pause 0
check "  is tried once" starts unknown 1
check "code 1 of a run with a checkpoint" restarted unknown 1 --restarts 2 --restart-pause 0
check "  is tried again" starts unknown 4 # the second has a new checkpoint, and two more have not
player progress <<'END'
case $n in
  3) mkdir -p "$out/checkpoints/step-00000008" ;;
  4) mkdir -p "$out/checkpoints/step-100000000" ;; # one more digit
  5) exit 0 ;;
esac
exit 5
END
check "the pause doubles, and is short again after a new checkpoint" restarted progress 0 --restarts 2 --restart-pause 1
check "  so it is" pauses progress 1 2 1 1
check "  each start goes on where the checkpoint is" says progress "goes on from $scratch/progress.run/checkpoints/step-100000000 in 1 s"
player still <<'END'
exit 5
END
begin still 'in 600 s' env LLMC_PROGRAM="$scratch/still" scripts/run --restarts 2 --restart-pause 600 --out "$scratch/still.run"
kill -INT "$child"
check "Ctrl-C ends the pause" ends 10
check "  with the last exit code" [ "$code" = 5 ]
player folder <<'END'
printf '%s\n' "$*" >>"$scratch/folder.arguments"
case $n in
  1) mkdir -p "${@: -1}" && touch "${@: -1}/run.json" && exit 5 ;;
  *) exit 0 ;;
esac
END
check "without --out a folder is chosen" env LLMC_PROGRAM="$scratch/folder" scripts/run --restarts 1 --restart-pause 0 --model some/llama \
  --resume from --stage second
out=$(head -n 1 "$scratch/folder.arguments")
check "  which is the restart's, too, without what was for the first start" \
  [ "$(tail -n 1 "$scratch/folder.arguments")" = "--model some/llama --out ${out##* } --resume auto --skip-bad-samples" ]
check "  and it is named after the model" grep -qE 'runs/[0-9_-]+-llama$' <<<"$out"

echo "-- hosts"
mkdir -p "$scratch/mpi/bin" "$scratch/ssh"
cat >"$scratch/mpi/bin/mpirun" <<'SH'
#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4" && exit; fi
hosts=$(sed -E 's/.* -H ([^ ]*) .*/\1/' <<<"$*")
echo "$hosts" >>"$PLACED"
case $hosts in
  *node2*) echo "error on rank 9 of 12: a GPU failed" >&2 && exit 5 ;;
  *node3*) printf 'error on all 4 ranks: waited 2 s for rank 11\n  which is stuck\n' >&2 && exit 5 ;;
  *node6*) mkdir -p "$OUT" && printf '{\n  "ranks": [\n    11\n  ],\n  "certain": %s\n}\n' "$CERTAIN" >"$OUT/wrong_gpu.json" && exit 7 ;;
esac
exit "${THEN:-0}"
SH
printf '#!/bin/sh\n[ "$5" != node4 ] || [ -n "$REACHED" ]\n' >"$scratch/ssh/ssh" # -o … -o … HOST true
chmod +x "$scratch/mpi/bin/mpirun" "$scratch/ssh/ssh"
on_hosts() { # CODE HOSTS…
  : >"$scratch/placed"
  exits "$1" env LLMC_PROGRAM="$train" MPI_HOME="$scratch/mpi" PATH="$scratch/ssh:$PATH" PLACED="$scratch/placed" OUT="$scratch/hosts.run" scripts/run --hosts "${@:2}" -n 12 \
    --restarts 5 --restart-pause 0 --out "$scratch/hosts.run"
}
placed() { [ "$(xargs <"$scratch/placed")" = "$*" ] || { cat "$scratch/placed" && return 1; }; }
check "hosts whose ranks failed twice in a row are left out" on_hosts 0 node1:8,node2:4,node3:4,node5:4
check "  spares take their places" placed node1:8,node2:4 node1:8,node2:4 node1:8,node3:4 node1:8,node3:4 node1:8,node5:4
check "  which is said" said "host node2 failed in 2 starts in a row: it is left out from now on" "host node3 failed in 2"
THEN=255 check "a host that does not answer" on_hosts 255 node4:8,node1:8,node5:4
check "  is left out" placed node4:8,node1:8 node4:8,node1:8 node1:8,node5:4 node1:8,node5:4 node1:8,node5:4 node1:8,node5:4
CERTAIN=true check "a host that computes wrongly" on_hosts 0 node1:8,node6:4,node5:4
check "  is left out at once" placed node1:8,node6:4 node1:8,node5:4
check "  which is said" said "(a GPU holds or computes other bits than it must)" "host node6 computes wrongly: it is left out from now on"
CERTAIN=false check "one of two hosts that may" on_hosts 7 node1:8,node6:4,node5:4
check "  is not" [ "$(sort -u "$scratch/placed")" = node1:8,node6:4 ]
THEN=255 check "without enough spares" on_hosts 255 node4:8,node1:4,node5:4
check "  nothing is left out" [ "$(sort -u "$scratch/placed")" = node4:8,node1:4 ]
check "  which is said" said "host node4 failed in 2 starts in a row; without it only 8 slots are left for 12 ranks"

echo "-- a step that is not finite"
options=(--seq-len 16 --global-batch 8 --val-every 0 --sample-every 0)
a_token_that_is_nan
options+=(--model "$scratch/start" --train-data "$scratch/with.txt" --steps 60 --warmup-steps 2 --checkpoint-every 1000)
for n in 1 2; do
  player bad$n <<'END'
exec "$train" "$@"
END
  check "$n rank(s): two passes over the data come to the end" restarted bad$n 0 -n $n --restarts 3 --restart-pause 0 "${options[@]}"
  check "  in three starts, for each pass has a bad step" starts bad$n 3
  check "  each is told" says bad$n "exit code 4 (a step was not finite): goes on from $scratch/bad$n.run/checkpoints/step-"
  check "  and the way round" says bad$n "meets this step again, unless --skip-bad-samples leaves out its samples"
done
left_out() { # NAME: what its last checkpoint leaves out: step, first and last sample
  python3 - "$scratch/$1.run" <<'EOF_PYTHON'
import glob, json, sys
state = json.load(open(max(glob.glob(sys.argv[1] + "/checkpoints/step-*/state.json"))))
assert state["windows"] == "concatenation, some left out", state["windows"]
for bad in state["left_out"]:
    print(bad["step"], *(number for pair in bad["samples"] for number in pair))
EOF_PYTHON
}
check "both leave out the same samples" [ "$(left_out bad1)" = "$(left_out bad2)" ]
# Step s, from 1, has the samples 8 s - 8 to 8 s - 1; after those that were left out, 8 further ones.
check "  those of the bad steps" eval 'left_out bad1 | awk "\$2 != 8 * (\$1 - 2 + NR) || \$3 != \$2 + 7 { ++others } END { exit others || NR != 2 }"'
# Sums of two ranks' gradients round in another order, to 2^-24 of the sum; some 60 steps magnify that.
check "  and have the same losses" near bad1.run bad2.run 60 1e-6 1e-4
check "the end tells which" says bad1 "left out: samples"
resume bad1.run 1 auto --steps 62 --checkpoint-every 1
check "gone on by hand, they stay left out" says bad1.run "left out   samples"
echo "$checks checks passed"
