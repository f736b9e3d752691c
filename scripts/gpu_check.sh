#!/usr/bin/env bash
# Everything that wants a GPU, in one command on a bare machine with one (nvcc, python with torch; no MPI, no network):
#
#   scripts/gpu_check.sh [build|probe|check|parity|bench|train|pytorch]…      no argument: all of them, in that order
#
# Small before large, each check a process of its own under a time limit; a part that fails does not stop the others. A part
# that was finished (with the same sources) is not run again: call it once more to go on where the last call ended, or
# delete build/gpu_check to begin anew. What a part prints is kept in dev/bench/results/gpu_<part>.txt (OUT=DIR: there);
# the table at the end says how each went. Without a GPU it is a rehearsal: the GPU's programs are built, what else can be
# done is done in the CPU world, and the rest says what it waits for. JSON_HOME and its like go through to make: a machine
# without nlohmann-json needs its headers brought along.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
results=${OUT:-dev/bench/results} state=build/gpu_check all=(build probe check parity bench train pytorch)
export NO_COLOR=1
unset MAKEFLAGS MAKELEVEL MFLAGS RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")

gpu=$(nvidia-smi --query-gpu=name,clocks.sm,clocks.mem,power.draw,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d . || true)
case $arch in 9?|1??) arch+=a ;; esac
programs=build/cuda
if [ -z "$gpu" ]; then programs=build/cpu && export LLMC_ONE_ORDER=1; fi
sources=$(find llmc dev scripts train_llama.cu test_llama.cu Makefile -type f -not -path '*/results/*' -not -name '*.pyc' |
  LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$state" "$results"

# run SECONDS COMMAND…: one check under its limit; what fails is said.
run() {
  local code=0 begin=$SECONDS
  echo "\$ ${*:2}"
  timeout --kill-after=10 "$1" "${@:2}" 2>&1 || code=$?
  if [ $code = 0 ]; then return; fi
  echo "FAIL: ${*:2}: exit code $code after $((SECONDS - begin)) s (limit $1 s)"
  return 1
}
# each FUNCTION ITEM…: all of them, whatever becomes of one.
each() {
  local item bad=0
  for item in "${@:2}"; do "$1" "$item" || bad=1; done
  return $bad
}
# on_gpu WHAT COMMAND…: not in a rehearsal.
on_gpu() {
  if [ -n "$gpu" ]; then "${@:2}"; else echo "waits for a GPU: $1"; fi
}
kernels() { for file in dev/kernels/*.cu; do basename "$file" .cu; done; }

part_build() {
  if ! command -v "${CUDA_HOME:+$CUDA_HOME/bin/}nvcc" >/dev/null; then echo "waits for nvcc: the programs for a GPU"
  else run 480 make DEVICE=cuda ARCH="${arch:-90a}" -j"$(nproc)" programs kernels build/cuda/test/comm || return 1; fi
  if [ -z "$gpu" ]; then run 900 make DEVICE=cpu -j"$(nproc)" programs kernels build/cpu/test/comm; fi
}

check_kernel() { run 240 "$programs/kernels/$1" check | grep -vE '^ok  ' ; return "${PIPESTATUS[0]}"; }
part_probe() { each check_kernel probe number; }

# Two processes on the one GPU: NCCL takes them for two machines.
two_ranks() {
  local rank pids=() bad=0
  echo "\$ $* (two ranks)"
  for rank in 0 1; do
    NCCL_HOSTID=rank$rank NCCL_SOCKET_IFNAME=lo RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 timeout 180 "$@" &
    pids+=($!)
  done
  for rank in 0 1; do wait "${pids[rank]}" || { echo "FAIL: rank $rank: exit code $?" && bad=1; }; done
  return $bad
}
two_rank_collectives() { LLMC_TEST_RENDEZVOUS=$scratch/collectives two_ranks "$programs/test/comm" 2>&1; }
check_communicator() { run 60 env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 "$programs/test/comm"; }
part_check() {
  local bad=0
  each check_kernel $(kernels | grep -vE '^(probe|number)$') || bad=1
  check_communicator || bad=1
  on_gpu "NCCL between two processes" two_rank_collectives || bad=1
  return $bad
}

check_dump() { run 240 "$programs/test_llama" "$1"; }
part_parity() { each check_dump dev/reference/dumps/*; }

bench_kernel() { run 120 "$programs/kernels/$1" bench; }
part_bench() { each bench_kernel $(kernels); }

quiet=(--val-every 0 --sample-every 0 --export off)
train_1b() {
  python3 - "$scratch/random.bin" <<'PYTHON' || { echo "FAIL: random tokens need python3 with numpy" && return 1; }
import sys
import numpy as np
header = np.zeros(256, np.int32)
header[:3] = 20240801, 7, 4_000_000  # llm.c's token file, of uint32
with open(sys.argv[1], "wb") as file:
    file.write(header.tobytes() + np.random.default_rng(1).integers(0, 128256, 4_000_000, dtype=np.uint32).tobytes())
PYTHON
  run 300 "$programs/train_llama" --model dev/bench/llama3.2-1b.json --train-data "$scratch/random.bin" --seq-len 2048 \
    --micro-batch 4 --global-batch 4 --steps 20 "${quiet[@]}" --out "$scratch/1b"
}
# The first loss of two ranks is that of one, to the rounding of a sum in another order.
train_two_ranks() {
  local losses
  run 120 "$programs/train_llama" --steps 5 "${quiet[@]}" --global-batch 16 --out "$scratch/one" >/dev/null || return 1
  two_ranks "$programs/train_llama" --steps 5 "${quiet[@]}" --global-batch 16 --rendezvous "$scratch/train" --out "$scratch/two" 2>&1 || return 1
  losses=$(for run in one two; do sed -n 's/.*"loss":\([^,]*\),.*/\1/p' "$scratch/$run/train.jsonl" | head -n 1; done | paste -sd' ')
  echo "first loss of one rank and of two: $losses"
  awk '{ exit !(NF == 2 && ($1 - $2)^2 < 1e-6) }' <<<"$losses"
}
part_train() {
  local bad=0
  run 120 "$programs/train_llama" --steps 20 --out "$scratch/tiny" || bad=1
  on_gpu "a training by two processes" train_two_ranks || bad=1
  on_gpu "llama3.2-1b on random tokens" train_1b || bad=1
  return $bad
}

part_pytorch() {
  local python=python3 bad=0
  if [ -z "$gpu" ] && [ -x build/pytorch/bin/python ]; then python=build/pytorch/bin/python; fi
  if ! "$python" -c 'import torch, transformers' 2>/dev/null; then echo "waits for python3 with torch and transformers" && return; fi
  if [ -z "$gpu" ]; then
    echo "waits for a GPU: llama3.2-1b; meanwhile a small model on the CPU"
    run 120 "$python" dev/bench/pytorch_train.py --config dev/reference/dumps/gqa4/config.json --steps 10 --seq-len 32
    return
  fi
  run 200 env PYTHON="$python" dev/bench/attention "$programs" || bad=1
  for compile in "" --compile; do
    run 130 "$python" dev/bench/pytorch_train.py --config dev/bench/llama3.2-1b.json --device cuda --dtype bf16 --batch 4 \
      --seq-len 2048 --steps 20 $compile || bad=1
  done
  echo "ours: $(sed -n 's/^step  *20.*| *\([0-9.k]* tok.s\).*/\1/p' "$results/gpu_train.txt" 2>/dev/null | tail -n 1)"
  return $bad
}

table="" failed=0
for part in "${parts[@]}"; do
  [[ " ${all[*]} " == *" $part "* ]] || { echo "scripts/gpu_check.sh: no part $part: ${all[*]}" >&2 && exit 2; }
  if [ "$(cat "$state/$part" 2>/dev/null)" = "$sources ${gpu%%,*}" ]; then
    table+=$(printf '%-8s done before' "$part")$'\n'
    continue
  fi
  begin=$SECONDS
  {
    echo "command  scripts/gpu_check.sh $part"
    echo "date     $(date -u +'%Y-%m-%d %H:%M UTC'), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo "GPU      ${gpu:-none: a rehearsal in the CPU world}"
    echo
  } | tee "$state/log"
  set +e
  "part_$part" 2>&1 | tee -a "$state/log"
  code=${PIPESTATUS[0]}
  set -e
  if [ "$code" != 0 ]; then says=FAIL && failed=$((failed + 1))
  else
    says=ok && echo "$sources ${gpu%%,*}" >"$state/$part"
    if grep -q '^waits for' "$state/log"; then says="ok, some waits"; fi
  fi
  if [ -n "$gpu" ]; then cp "$state/log" "$results/gpu_$part.txt"; fi
  table+=$(printf '%-8s %-16s %4s s' "$part" "$says" "$((SECONDS - begin))")$'\n'
  grep '^waits for' "$state/log" >"$state/waits" || true
  table+=$(sed 's/^/           /' "$state/waits")${table:+$'\n'}
done
echo
printf '%s' "$table" | sed '/^$/d'
[ "$failed" = 0 ]
