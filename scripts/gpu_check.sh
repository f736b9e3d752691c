#!/usr/bin/env bash
# Everything that wants a GPU, in one command on a bare machine with one (nvcc, python with numpy; no MPI, no network):
#
#   scripts/gpu_check.sh [build|probe|check|parity|train|bench]…      no argument: all of them, in that order
#
# Small before large, each check a process of its own under a time limit; a part that fails does not stop the others. A part
# that was finished (with the same sources) is not run again: call it once more to go on where the last call ended, or
# delete build/gpu_check to begin anew. What a part prints is kept in dev/bench/results/gpu_<part>.txt (OUT=DIR: there);
# the table at the end says how each went. Without a GPU it rehearses: what can be done is, the rest says what it waits for.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
results=${OUT:-dev/bench/results} state=build/gpu_check
export NO_COLOR=1
unset MAKEFLAGS MAKELEVEL MFLAGS
parts=("$@")
[ $# -gt 0 ] || parts=(build probe check parity train bench)

gpu=$(nvidia-smi --query-gpu=name,clocks.sm,clocks.mem,power.draw,driver_version --format=csv,noheader 2>/dev/null | head -n 1 || true)
arch=$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | head -n 1 | tr -d . || true)
case $arch in 9?|1??) arch+=a ;; esac
sources=$(find llmc dev/kernels dev/reference/dumps train_llama.cu test_llama.cu Makefile -type f | LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16)
mkdir -p "$state" "$results"
table="" failed=0

# run SECONDS COMMAND…: one check under its limit; what fails is shown and counted.
run() {
  local code=0 begin=$SECONDS
  echo "\$ ${*:2}"
  timeout --kill-after=10 "$1" "${@:2}" 2>&1 || code=$?
  if [ $code = 0 ]; then return; fi
  echo "FAIL: ${*:2}: exit code $code after $((SECONDS - begin)) s (limit $1 s)"
  return 1
}
each() { # FUNCTION ITEM…: all of them, whatever becomes of one
  local item bad=0
  for item in "${@:2}"; do "$1" "$item" || bad=1; done
  return $bad
}
check_kernel() { run 120 "build/cuda/kernels/$1" check | grep -vE '^ok  ' ; return "${PIPESTATUS[0]}"; }
bench_kernel() { run 120 "build/cuda/kernels/$1" bench; }
check_dump() { run 120 build/cuda/test_llama "$1"; }
kernels() { for file in dev/kernels/*.cu; do basename "$file" .cu; done; }

needs_gpu() { [ -n "$gpu" ] || { echo "waits for a GPU: $*" && return 3; }; }
part_build() { run 480 make DEVICE=cuda ARCH="${arch:-90a}" -j"$(nproc)" all kernels build/cuda/test/comm; }
part_probe() { needs_gpu "every wrapper of llmc/device against its meaning in the CPU world" && check_kernel probe && check_kernel number; }
part_check() { needs_gpu "every kernel against its plain reference" && each check_kernel $(kernels); }
part_parity() { needs_gpu "test_llama on every dump, in fp32 and bf16" && each check_dump dev/reference/dumps/*; }
part_train() {
  needs_gpu "a training of tiny, and of llama3.2-1b on random tokens" || return
  local out
  out=$(mktemp -d)
  run 120 build/cuda/train_llama --steps 20 --out "$out/tiny" &&
    run 60 python3 -c "
import numpy as np
header = np.zeros(256, np.int32); header[:3] = 20240801, 7, 4_000_000
with open('$out/random.bin', 'wb') as f: f.write(header.tobytes()); f.write(np.random.default_rng(1).integers(0, 128256, 4_000_000, dtype=np.uint32).tobytes())" &&
    run 240 build/cuda/train_llama --model llama3.2-1b --train-data "$out/random.bin" --seq-len 2048 --micro-batch 4 --global-batch 8 \
      --steps 10 --val-every 0 --sample-every 0 --export off --out "$out/1b" &&
    run 60 env RANK=0 WORLD_SIZE=1 LOCAL_RANK=0 build/cuda/test/comm
  local code=$?
  rm -rf "$out"
  return $code
}
part_bench() { needs_gpu "every kernel timed, with the fraction of the device's ceiling" && each bench_kernel $(kernels); }

for part in "${parts[@]}"; do
  [ "$(type -t "part_$part")" = function ] || { echo "scripts/gpu_check.sh: no part $part: build probe check parity train bench" >&2 && exit 2; }
  if [ "$(cat "$state/$part" 2>/dev/null)" = "$sources $gpu" ]; then
    table+=$(printf '%-8s done before' "$part")$'\n'
    continue
  fi
  begin=$SECONDS code=0
  result=$results/gpu_$part.txt
  {
    echo "command  scripts/gpu_check.sh $part"
    echo "date     $(date -u +'%Y-%m-%d %H:%M UTC'), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo "GPU      ${gpu:-none: a rehearsal}"
    echo
  } | tee "$state/log"
  set +e
  (set -o pipefail; "part_$part") 2>&1 | tee -a "$state/log"
  code=${PIPESTATUS[0]}
  set -e
  seconds=$((SECONDS - begin))
  case $code in
    0) says=ok && echo "$sources $gpu" >"$state/$part" ;;
    3) says="waits for a GPU" ;;
    *) says=FAIL && failed=$((failed + 1)) ;;
  esac
  if [ -n "$gpu" ]; then cp "$state/log" "$result"; fi
  table+=$(printf '%-8s %-16s %4s s' "$part" "$says" "$seconds")$'\n'
done
echo
printf '%s' "$table"
[ "$failed" = 0 ]
