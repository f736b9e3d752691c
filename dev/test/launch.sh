#!/usr/bin/env bash
# Covers: scripts/run --hosts: what mpirun gets, malformed lists, Ctrl-C; scripts/train.sbatch: what srun gets, a job
# that is stopped saves and is requeued, its next start goes on to the same bits; what the environment ended is requeued,
# so many times without a new checkpoint, without nodes that failed twice; what the user must mend is not
# Timeout: 300
# Alone: it sends signals, and jobs end by the clock
#
# No Slurm is needed: stand-ins for srun and scontrol note what they are asked, and this test does what Slurm does: it
# starts a copy of the batch script with SLURM_…, sends USR1 to it alone, and starts it again when it asked to be
# requeued. The stand-in for srun starts real ranks and passes USR1 to them, as srun does. What Slurm itself decides is
# not seen: when it signals, what it allocates, how it binds. The mpirun that notes its arguments is a stand-in too; the
# ranks of --hosts localhost:2 are real, a second machine is not.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
unset MPIRUN_FLAGS CUDA_VISIBLE_DEVICES "${!LLMC_@}" "${!SLURM_@}" "${!NCCL_@}"
export LLMC_PROGRAM=$train
# Without end, so that a signal always comes between two steps; the rate is that of any number of steps.
run=(--layers 1 --seq-len 64 --val-every 0 --sample-every 0 --schedule constant --warmup-steps 1 --steps)

says() { grep -qF -- "$2" "$1"; }
ended_with() { # CODE: of the child
  local code=0
  wait "$child" || code=$?
  [ "$code" = "$1" ] || { echo "exit code $code" && return 1; }
}

# ---------------------------------------------------------------------------------------------- scripts/run --hosts

malformed() { refused "--hosts $1" "$2" scripts/run --hosts "$1" --steps 1; }
malformed "" "--hosts: expected a value"
malformed node1 "'node1' is no host with its slots"
malformed node1:0 "'node1:0' is no host"
malformed node1:8,,node2:8 "'' is no host"
malformed "node1:8 node2:8" "'node1:8 node2:8' is no host"
malformed localhost:1,localhost:1 "localhost stands twice"
refused "more ranks than slots" "has 3 slots" scripts/run -n 4 --hosts a:1,b:2
refused "two lists" "name the hosts once" scripts/run --hosts a:1 --hostfile "$scratch/hosts"
refused "a host file that is not there" "cannot read this file" scripts/run --hostfile "$scratch/nothing"
echo "node1 cpu=8" >"$scratch/hosts"
refused "a malformed host file" "'node1 cpu=8' is no host" scripts/run --hostfile "$scratch/hosts"
printf '# two machines\nnode1 slots=8\n\nnode2  slots = 4 # half\n' >"$scratch/hosts"

mkdir -p "$scratch/mpi/bin" "$scratch/mpich/bin"
cat >"$scratch/mpi/bin/mpirun" <<'SH'
#!/usr/bin/env bash
if [ "$1" = --version ]; then echo "mpirun (Open MPI) 4.1.4"; else echo "mpirun $*"; fi
SH
sed 's/mpirun (Open MPI) 4.1.4/HYDRA build details/' "$scratch/mpi/bin/mpirun" >"$scratch/mpich/bin/mpirun"
chmod +x "$scratch"/mpi*/bin/mpirun
asks() { # ARGUMENTS…: mpirun's arguments
  env MPI_HOME="$scratch/mpi" LLMC_CPU_SEED="" NCCL_DEBUG=INFO FI_PROVIDER=efa OFI_NCCL_PROTOCOL=RDMA SECRET=1 "$@" 2>&1 | sed 's/ -x LD_LIBRARY_PATH//'
}
exports="-x FI_PROVIDER -x LLMC_CPU_SEED -x LLMC_PROGRAM -x NCCL_DEBUG -x NO_COLOR -x OFI_NCCL_PROTOCOL -x OPENBLAS_NUM_THREADS"
expected="mpirun -n 12 --bind-to none --map-by slot $exports -H node1:8,node2:4 $train --steps 1"
asked=$(asks scripts/run --hosts node1:8,node2:4 --steps 1)
check "a rank for each slot, the first host first" [ "$asked" = "$expected" ]
asked=$(asks scripts/run --hostfile "$scratch/hosts" --steps 1)
check "--hostfile is the same" [ "$asked" = "$expected" ]
asked=$(asks scripts/run --hosts node1:8,node2:4 -n 9 --steps 1)
check "-n takes fewer" [ "$asked" = "${expected/-n 12/-n 9}" ]
check "one rank elsewhere is not one here" says <(asks scripts/run --hosts node1:1) "-H node1:1 $train"
check "chosen GPUs are passed on" says <(asks CUDA_VISIBLE_DEVICES=1 scripts/run --hosts a:1) "-x CUDA_VISIBLE_DEVICES"
check "one machine is as before" says <(asks scripts/run -n 2) "mpirun -n 2 --bind-to none --oversubscribe env --block-signal=TERM --block-signal=HUP --block-signal=USR1"
mkdir -p "$scratch/failing/bin" "$scratch/ssh"
sed 's/else echo .*/else exit 255; fi/' "$scratch/mpi/bin/mpirun" >"$scratch/failing/bin/mpirun"
printf '#!/bin/sh\n[ "$5" = node1 ]\n' >"$scratch/ssh/ssh" # -o … -o … HOST true: only one of them is there
chmod +x "$scratch/failing/bin/mpirun" "$scratch/ssh/ssh"
check "a host that is not reached: mpirun's exit code" exits 255 env MPI_HOME="$scratch/failing" PATH="$scratch/ssh:$PATH" scripts/run --hosts node1:8,node2:8
check "  is named" says "$scratch/out.txt" "scripts/run: host node2 does not answer to: ssh node2 true"
check "  and no other" eval '! grep "host node1" "$scratch/out.txt"'
refused "MPICH's mpirun" "is not Open MPI's, which several hosts need" \
  env MPI_HOME="$scratch/mpich" scripts/run --hosts node1:8

setsid env --default-signal=INT scripts/run --hosts localhost:2 "${run[@]}" 1000000 --out "$scratch/hosts.run" \
  >"$scratch/out" 2>&1 &
child=$!
wait_for "$scratch/out" "^step .*loss"
kill -INT "$child"
check "--hosts localhost:2: Ctrl-C ends well" ended_with 0
check "with both ranks" says "$scratch/out" "ranks      2 (started by mpirun"
check "with a checkpoint" says "$scratch/out" "saved $scratch/hosts.run/checkpoints/step-"

# ---------------------------------------------------------------------------------------------- scripts/train.sbatch

mkdir -p "$scratch/bin" "$scratch/spool" "$scratch/work" # Slurm starts a copy, in the folder of sbatch
cp scripts/train.sbatch "$scratch/spool/slurm_script"
cat >"$scratch/bin/srun" <<'SH'
#!/usr/bin/env bash
if [ "$1" = --mpi=list ]; then
  printf 'MPI plugin types are...\n\tnone\n\t%s\n' "${PLUGIN:-pmix}" >&2
  exit
fi
echo "srun $*" >>"$STAND_IN/srun.log"
while [[ $1 == --* ]]; do
  [[ $1 != --ntasks=* ]] || tasks=${1#*=}
  shift
done
if [ "${RANKS:-}" = none ]; then exit; fi
if [ "$tasks" = 1 ]; then SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 exec "$@"; fi
# mpirun passes USR1 on, as srun does, and unlike srun would kill its ranks at SIGTERM.
exec env --block-signal=TERM mpirun --oversubscribe --bind-to none -n "$tasks" "$@"
SH
cat >"$scratch/bin/scontrol" <<'SH'
#!/usr/bin/env bash
if [ "$1 $2" = "show hostnames" ]; then
  printf '%s\n' node1 node2
  exit
fi
echo "scontrol $*" >>"$STAND_IN/scontrol.log"
exit "${SCONTROL_CODE:-0}"
SH
# Ends at USR1, with what USR1_DOES.
cat >"$scratch/bin/program" <<'SH'
#!/usr/bin/env bash
trap 'cd runs/slurm-7 && eval "$USR1_DOES"; exit' USR1
mkdir -p runs/slurm-7/checkpoints
echo "step 1: loss"
for _ in {1..300}; do sleep 0.1; done
SH
chmod +x "$scratch"/bin/*
: >"$scratch/scontrol.log"
export PATH=$scratch/bin:$PATH STAND_IN=$scratch LLMC_THREADS=1
export SLURM_JOB_ID=7 SLURM_JOB_NUM_NODES=1 SLURM_NTASKS_PER_NODE=2
cd "$scratch/work"
script=$scratch/spool/slurm_script
job() { "$BASH" "$script" "$@" >"$scratch/out" 2>&1; }
begin() { # ARGUMENTS…: starts the job, until its first step is done
  : >"$scratch/out"
  "$BASH" "$script" "$@" >"$scratch/out" 2>&1 &
  child=$!
  wait_for "$scratch/out" "^step .*loss"
}
requeues() { # N: how often Slurm was asked to, until now
  [ "$(grep -cx 'scontrol requeue 7' "$scratch/scontrol.log")" = "$1" ]
}
last_srun() { tail -n 1 "$scratch/srun.log"; }

awk '/^[^#]/ { exit } /^#SBATCH /' "$script" >"$scratch/read" # Slurm reads no further than the first command
check "Slurm reads every #SBATCH line" diff "$scratch/read" <(grep '^#SBATCH' "$script")
for option in --requeue --signal=B:USR1@ --output=slurm-%j.out --open-mode=append; do
  check "#SBATCH $option" says "$scratch/read" "#SBATCH $option"
done
refused "not under Slurm" "this is a Slurm job" env -u SLURM_JOB_ID "$BASH" "$script"
refused "submitted from elsewhere" "no program ./train_llama" env -u LLMC_PROGRAM "$BASH" "$script"

# The arguments that srun gets.
expected="--distribution=block --cpu-bind=none --kill-on-bad-exit=1 $train --model tiny"
RANKS=none SLURM_JOB_NUM_NODES=4 SLURM_GPUS_ON_NODE=8 SLURM_NTASKS_PER_NODE="" job --model tiny
check "a rank for each GPU" [ "$(last_srun)" = "srun --mpi=pmix --ntasks=32 --ntasks-per-node=8 $expected \
--out runs/slurm-7 --resume none --rendezvous runs/slurm-7.rendezvous-7-0" ]
RANKS=none PLUGIN=pmi2 job >"$scratch/out"
check "without PMIx the ranks meet at a file" says <(last_srun) "srun --mpi=none --ntasks=2 "
RANKS=none SLURM_MPI_TYPE=pmi2 job >"$scratch/out"
check "SLURM_MPI_TYPE counts" says <(last_srun) "srun --mpi=pmi2 "
export RANKS=none
job --out=elsewhere --resume from
check "--out and --resume count" says <(last_srun) "--out elsewhere --resume from --rendezvous elsewhere.rendezvous-7-0"
SLURM_RESTART_COUNT=1 job --out elsewhere --resume=from
check "a second start without a checkpoint begins as the first" says <(last_srun) "--out elsewhere --resume from --rend"
mkdir -p elsewhere/checkpoints/step-00000003
SLURM_RESTART_COUNT=1 job --out elsewhere --resume=from
check "with one it goes on, by another file" \
  says <(last_srun) "--out elsewhere --resume auto --rendezvous elsewhere.rendezvous-7-1"
unset RANKS

# A run that is stopped, and goes on.
begin "${run[@]}" 1000000
kill -USR1 "$child"
sleep 0.02
kill -USR1 "$child" || true
check "USR1 to the batch script, twice: the job ends well" ended_with 0
check "both ranks were there" says "$scratch/out" "ranks      2 (started by mpirun"
check "train_llama was asked to stop" says "$scratch/out" "asked to stop: ending after step"
checkpoint=$(echo runs/slurm-7/checkpoints/step-*)
step=$((10#${checkpoint##*-}))
check "it saved the state after step $step" [ -d "$checkpoint" ]
check "the job is requeued" requeues 1
SLURM_RESTART_COUNT=1 job "${run[@]}" $((step + 3))
check "the second start goes on after step $step" says "$scratch/out" "goes on    after step $step of $checkpoint"
check "it comes to the end" says "$scratch/out" "exported the weights to runs/slurm-7/export"
check "and is not requeued" requeues 1
ranks 2 "$train" "${run[@]}" $((step + 3)) --out straight >"$scratch/out"
check "the losses are those of a run that was never stopped" \
  diff <(losses straight/train.jsonl) <(losses runs/slurm-7/train.jsonl)
check "nothing else is left" [ "$(ls runs | tr '\n' ' ')" = "latest slurm-7 slurm-7.restarts " ]
rm -r runs

begin "${run[@]}" 1000000
mpirun=$(pgrep -P "$child")
mapfile -t ranks < <(pgrep -P "$mpirun")
kill -TERM "$child" "$mpirun" "${ranks[@]}"
check "SIGTERM to all processes of the job: it ends well" ended_with 0
check "it saved" compgen -G "runs/slurm-7/checkpoints/step-*[0-9]"
check "the job is not requeued" requeues 1
check "it says how to go on" says "$scratch/out" "submit the same again, with --out runs/slurm-7 --resume auto"
rm -r runs

# Ends that are not requeued.
fails() { # CODE ARGUMENTS…
  local code=0
  job "${@:2}" || code=$?
  check "it fails with code $1: ${*:2}" [ "$code" = "$1" ]
}
fails 64 --model nothing
check "it says why" says "$scratch/out" "nothing"
SLURM_NTASKS_PER_NODE=1 fails 64 "${run[@]}" 3 --lr nonsense
export LLMC_PROGRAM=$scratch/bin/program SLURM_NTASKS_PER_NODE=1
usr1() { # WHAT CODE COMMAND: what the program does at USR1, and the job's code then
  rm -rf runs
  USR1_DOES=$3 begin
  kill -USR1 "$child"
  check "$1: code $2" ended_with "$2"
}
usr1 "a wrong option, after USR1" 64 "mkdir checkpoints/step-00000003; exit 64"
usr1 "USR1 when the last step was done" 0 "mkdir -p checkpoints/step-00000003 export"
usr1 "nothing was saved" 0 "mkdir checkpoints/step-00000003.partial"
check "none of these is requeued" requeues 1
usr1 "a checkpoint and no export" 0 "mkdir checkpoints/step-00000003"
check "that is requeued" requeues 2
export SCONTROL_CODE=1
usr1 "Slurm refuses to requeue" 1 "mkdir checkpoints/step-00000003"
check "it says how to go on" says "$scratch/out" "--out runs/slurm-7 --resume auto"

# What the environment ended. The program's code is $CODE, and srun says what $ERROR says.
export SCONTROL_CODE=0 SLURM_NTASKS_PER_NODE=4 SLURM_JOB_NUM_NODES=2 SLURM_JOB_NODELIST="node[1-2]" SLURM_JOB_ID=8 ERROR=""
cat >"$scratch/bin/srun" <<'SH'
#!/usr/bin/env bash
echo "srun $*" >>"$STAND_IN/srun.log"
[ -z "$ERROR" ] || echo "$ERROR" >&2
exit "$CODE"
SH
rm -rf runs
: >"$scratch/scontrol.log"
ends() { # CODE START
  local code=0
  export CODE=$1 SLURM_RESTART_COUNT=$2
  job || code=$?
  [ "$code" = "$1" ] || { cat "$scratch/out" && echo "exit code $code" && return 1; }
}
asked() { [ "$(cat "$scratch/scontrol.log")" = "$(printf '%s\n' "$@")" ] || { cat "$scratch/scontrol.log" && return 1; }; }
queued=()
for code in 64 2 1; do
  check "code $code without a checkpoint" ends $code 0
  check "  is not requeued" asked
done
saved() { mkdir -p "runs/slurm-8/checkpoints/step-0000000$1"; }
for start in 0 1 2; do
  check "code 5 in start $start" ends 5 $start
  queued+=("scontrol requeue 8")
  check "  is requeued" asked "${queued[@]}"
done
check "a third restart without a checkpoint" ends 5 3
check "  is the last one" asked "${queued[@]}"
check "  which is said" says "$scratch/out" "exit code 5, and 3 restarts in a row brought no new checkpoint: the job ends"
saved 1
check "a new one that fails, too" ends 1 3
queued+=("scontrol requeue 8")
check "  gives it three further ones, also for a code that does not tell" asked "${queued[@]}"
check "  which are counted where everybody can read it" says runs/slurm-8.restarts "starts_without_new_checkpoint=0"
check "they leave out what ended the one before" says <(last_srun) "--skip-bad-samples --out runs/slurm-8 --resume auto"
ERROR="error on rank 5 of 8: a GPU failed" check "rank 5 is on the second node" ends 5 4
queued+=("scontrol requeue 8")
check "  which stays in, for it failed once" asked "${queued[@]}"
saved 2
ERROR="collective 7 of this run: waited 600 s for rank 6" check "it fails again" ends 5 5
queued+=("scontrol update JobId=8 ExcNodeList=node2" "scontrol requeue 8")
check "  and is left out" asked "${queued[@]}"
check "  which is said" says "$scratch/out" "node node2 failed in two starts in a row: it is left out from now on"
# What Slurm starts again by itself has no exit code: the next start counts it.
export CODE=0
for start in 6 7 8; do
  SLURM_RESTART_COUNT=$start job
done
starts=$(wc -l <"$scratch/srun.log")
check "a node that is lost again and again: the fourth restart" eval '! SLURM_RESTART_COUNT=9 job'
check "  ends the job" says "$scratch/out" "3 restarts in a row brought no new checkpoint: see above"
check "  before it starts anything" eval '! tail -n +$((starts + 1)) "$scratch/srun.log" | grep -v mpi=list | grep .'
check "LLMC_RESTARTS=0 leaves it to Slurm" env LLMC_RESTARTS=0 CODE=0 SLURM_RESTART_COUNT=11 "$BASH" "$script"
echo "$checks checks passed"
