#!/usr/bin/env bash
# Covers: promise 2: --gpus N of the CUDA build: the bits of N ranks under mpirun; a killed rank ends all of them with its name;
# Ctrl-C saves, and the command that it prints goes on; scripts/run takes it, and restarts it; an error is printed once
# Programs: train_llama
# Timeout: 600
# Alone: it sends signals and looks at how long ranks take to end
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
mkdir "$scratch/tmp"
export LLMC_THREADS=1 LLMC_PROGRAM=$train TMPDIR=$scratch/tmp
options=(--layers 1 --seq-len 32 --micro-batch 1 --global-batch 8 --val-every 0 --sample-every 0 --zero-stage 3)

run mpi 4 --steps 3
check "--gpus 4 trains" exits 0 "$train" --gpus 4 "${options[@]}" --steps 3 --out "$scratch/own"
check "  four ranks" grep -q 'ranks      4 (started by --gpus, without MPI)' "$scratch/out.txt"
check "  as mpirun -n 4 does" same mpi own
check "  nothing is left of where they met" [ -z "$(ls "$TMPDIR")" ]
check "scripts/run starts it" exits 0 scripts/run --gpus 2 "${options[@]}" --steps 1 --out "$scratch/script"
check "  two ranks" grep -q 'ranks      2 (started by --gpus, without MPI)' "$scratch/out.txt"

refused "a missing file is told once" "error on " "$train" --gpus 4 --train-data "$scratch/no.txt"
check "  with its name" grep -q "no.txt" "$scratch/refused"
check "  and no other time" [ "$(grep -c "no.txt" "$scratch/refused")" = 1 ]
refused "an option that is wrong" "error: --steps nine: " "$train" --gpus 2 --steps nine
refused "more ranks than GPUs" "start at most one rank per GPU: --gpus 8 or" "$train" --gpus 64 --steps 1
refused "a file to meet at" "the ranks that --gpus starts meet by themselves" "$train" --gpus 2 --rendezvous meet
refused "another number than mpirun's" "--gpus 3: there are 2 ranks, started by mpirun" ranks 2 "$train" --gpus 3 --steps 1

# The processes of the ranks, in their order.
ranks_of() { # RUN
  local process
  for process in $(pgrep -f -- "--out $scratch/$1( |\$)"); do
    tr '\0' '\n' <"/proc/$process/environ" 2>/dev/null | sed -n "s/^LLMC_RANK=\([0-9]*\)$/\1 $process/p"
  done | sort -n | cut -d' ' -f2
}
trains() { # NAME OPTIONS…: until it trains
  begin "$1" '^step' "$train" --gpus 4 "${options[@]}" --steps 1000000 --out "$scratch/$1" "${@:2}"
}

trains killed
mapfile -t processes < <(ranks_of killed)
check "four processes of ranks" [ "${#processes[@]}" = 4 ]
kill -KILL "${processes[2]}"
ends 30 || fail "a killed rank does not end the others within 30 s"
check "a killed rank ends all with its code ($code)" [ "$code" = 137 ]
check "  and its name" says killed "rank 2 of 4: its process ${processes[2]} was ended by signal 9"
check "  no process is left" [ -z "$(ranks_of killed)" ]

trains asked
kill -INT "$child"
ends 60 || fail "Ctrl-C does not end it within 60 s"
check "Ctrl-C saves (code $code)" [ "$code" = 0 ]
check "  and says where" says asked "saved $scratch/asked/checkpoints/step-"
how=$(sed -n 's/^to go on: //p' "$scratch/asked.txt")
check "  and how to go on: $how" [ "$how" = "./train_llama --gpus 4 --out $scratch/asked --resume auto" ]
steps=$(losses "$scratch/asked/train.jsonl" | wc -l)
# shellcheck disable=SC2086  # words
check "which does" exits 0 ${how/#.\/train_llama/$train} --steps $((steps + 1))
check "  for one step more" [ "$(losses "$scratch/asked/train.jsonl" | wc -l)" = $((steps + 1)) ]

begin again '^step' scripts/run --restarts 2 --restart-pause 0 --gpus 2 "${options[@]}" --steps 1000000 \
  --checkpoint-every 2 --out "$scratch/again"
wait_for "$scratch/again.txt" "step-00000002"
kill -KILL "$(ranks_of again | tail -n 1)"
wait_for "$scratch/again.txt" "goes on from"
until sed '1,/goes on from/d' "$scratch/again.txt" | grep -q '^step'; do sleep 0.1; done
kill -INT "$child"
ends 60 || fail "Ctrl-C does not end scripts/run within 60 s"
check "scripts/run starts it again, and Ctrl-C ends that (code $code)" [ "$code" = 0 ]
echo "$checks checks passed"
