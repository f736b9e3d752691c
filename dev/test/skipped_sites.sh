#!/usr/bin/env bash
# Covers: checks that can fail: twelve barriers, waits, records and releases over all rooms, skipped one at a time
# Timeout: 600
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
env -u LLMC_BUILD make DEVICE=cpu FAULTS=1 build/cpu-faults/{train_llama,test/comm} \
  build/cpu-faults/kernels/{attention,rmsnorm,classifier} >"$scratch/make.txt" 2>&1 || { tail -n 20 "$scratch/make.txt" && fail "make FAULTS=1"; }
faulty=build/cpu-faults
short=(--layers 2 --steps 4 --global-batch 4 --micro-batch 1 --seq-len 32 --val-every 0 --sample-every 0 --export off)

kernel() { "$faulty/kernels/$1" check; }
comm() { LLMC_CPU_STREAMS=lazy ranks 2 "$faulty/test/comm"; }
train_on() { ranks "$1" "$faulty/train_llama" "${short[@]}" --out "$scratch/run$RANDOM$RANDOM"; }

# caught FILE PATTERN MESSAGE COMMAND…: the command passes with nothing skipped, and fails with MESSAGE when the first site
# of FILE whose line matches PATTERN is skipped.
caught() {
  local number place
  read -r number place < <(dev/test/fault_sites | grep -E "$1:[0-9]+ .*$2" | awk '!n++ { print $1, $2 }') ||
    fail "no fault site in $1 matches $2"
  "${@:4}" >"$scratch/whole.txt" 2>&1 || { tail -n 20 "$scratch/whole.txt" && fail "nothing is skipped, and ${*:4} fails"; }
  export LLMC_FAULT=$place
  local code=0
  timeout 120 bash -c "$(declare -f kernel comm train_on ranks); faulty=$faulty scratch=$scratch short=(${short[*]}); $(printf '%q ' "${@:4}")" \
    >"$scratch/skipped.txt" 2>&1 || code=$?
  unset LLMC_FAULT
  checks=$((checks + 1))
  if [ "$code" = 0 ] || [ "$code" = 124 ] || ! grep -qE -- "$3" "$scratch/skipped.txt"; then
    tail -n 20 "$scratch/skipped.txt"
    fail "site $number ($1, $2): exit code $code without \"$3\""
  fi
  echo "ok   site $number, $1, $2: $(awk -v m="$3" '$0 ~ m && !n++' "$scratch/skipped.txt")"
}

caught llmc/kernels/attention_plain_forward.cu '__syncthreads' '^FAIL' kernel attention
caught llmc/kernels/attention_plain_dkv.cu '__syncthreads' '^FAIL' kernel attention
caught llmc/kernels/rmsnorm.cu '__sync' '^FAIL' kernel rmsnorm
caught llmc/kernels/classifier.cu '__syncthreads' '^FAIL' kernel classifier
caught llmc/comm/communicator.cpp 'done.record' 'check failed: broadcast_text' comm
caught llmc/memory/gradient_store.cpp 'communication_.wait' 'unordered access: all_reduce' train_on 2
caught llmc/memory/gradient_store.cpp 'compute_.wait' 'unordered access' train_on 2
caught llmc/train/trainer.cpp 'to_communication_.record' 'unordered access' train_on 2
caught llmc/train/trainer.cpp 'wait_for.returned_' 'unordered access: the step.s result' train_on 1
caught llmc/train/batch_feed.cpp 'wait_for' 'unordered access: the next batch' train_on 1
caught llmc/train/walk.cpp 'gather\(embedding' 'nobody gathered' train_on 1
caught llmc/train/walk.cpp 'release\(layout_.block_unit' 'gathered again before it was released' train_on 1
echo "$checks checks passed"
