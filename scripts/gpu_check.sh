#!/usr/bin/env bash
# Everything that wants a GPU, in one command on a bare machine with one (nvcc, python with torch; no MPI, no network):
#
#   scripts/gpu_check.sh [PART…]      no argument: all of them, in this order:
#   build probe check parity bench train train_ranks train_1b roofline memory ladder pytorch pytorch_fp8 pytorch8b pytorch8b_fp8
#
# Small before large; each check is a process of its own under a time limit, a part ends after 7.5 minutes, and one that
# fails does not stop the others. A part that was finished (with the same sources) is not run again: call it once more to
# go on where the last call ended, or delete build/gpu_check to begin anew. What a part prints goes to
# dev/bench/results/gpu_<part>.txt (OUT=DIR: there) while it runs; the table at the end says how each went. Without a GPU
# it is a rehearsal: the GPU's programs are built, what else can be done is done in the CPU world, and the rest says what
# it waits for. JSON_HOME, PCRE2_HOME and their like go through to make: what a machine lacks must be brought along.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
results=${OUT:-dev/bench/results} state=build/gpu_check 
all=(build probe check parity bench train train_ranks train_1b roofline memory ladder pytorch pytorch_fp8 pytorch8b pytorch8b_fp8)
export NO_COLOR=1
unset MAKEFLAGS MAKELEVEL MFLAGS RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE DEVICE FAULTS SANITIZE BUILD EMULATOR
parts=("$@")
[ $# -gt 0 ] || parts=("${all[@]}")
for part in "${parts[@]}"; do
  [[ " ${all[*]} " == *" $part "* ]] || { echo "scripts/gpu_check.sh: no part $part: ${all[*]}" >&2 && exit 2; }
done

query() { nvidia-smi --query-gpu="$1" --format=csv,noheader 2>/dev/null | sed -n 1p; }
gpu="" arch=""
if [[ $(nvidia-smi -L 2>/dev/null) == 'GPU 0'* ]]; then
  gpu=$(query name,clocks.sm,clocks.mem,power.draw,driver_version)
  arch=$(query compute_cap | tr -d .)
  case $arch in 9? | 1??) arch+=a ;; esac
fi
[[ $arch =~ ^[0-9]+a?$ ]] || arch=90a
programs=build/cuda
if [ -z "$gpu" ]; then programs=build/cpu && export LLMC_ONE_ORDER=1; fi
sources=$(find llmc dev scripts train_llama.cu test_llama.cu Makefile -type f -not -path '*/results/*' -not -name '*.pyc' |
  LC_ALL=C sort | xargs cat | sha256sum | cut -c1-16)
key="$sources ${gpu%%,*} ${CUDA_HOME:-} ${NCCL_HOME:-}"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$state" "$results"

left() { echo $((part_begin + part_limit - SECONDS)); }
# run SECONDS COMMAND…: one check under its limit, or what is left of the part's; what fails is said.
run() {
  local code=0 begin=$SECONDS limit=$1
  echo "\$ ${*:2}"
  if [ "$(left)" -lt 5 ]; then echo "FAIL: left out: the part's $part_limit s are over" && return 1; fi
  if [ "$(left)" -lt "$limit" ]; then limit=$(left); fi
  timeout --kill-after=10 "$limit" "${@:2}" 2>&1 || code=$?
  if [ $code = 0 ]; then return; fi
  echo "FAIL: ${*:2}: exit code $code after $((SECONDS - begin)) s (limit $limit s)"
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
  local bad=0
  if [ -z "$gpu" ]; then part_limit=1800; fi # two builds, on few cores
  if [ -z "$gpu" ] && ! DEVICE=cuda ARCH=$arch scripts/doctor configure >/dev/null 2>&1; then echo "waits for nvcc: the programs for a GPU"
  else run 900 make DEVICE=cuda ARCH="$arch" -j"$(nproc)" programs kernels build/cuda/test/comm || bad=1; fi
  if [ -z "$gpu" ]; then run 900 make DEVICE=cpu -j"$(nproc)" programs kernels build/cpu/test/comm || bad=1; fi
  return $bad
}

check_kernel() { run 240 "$programs/kernels/$1" check | grep -vE '^ok  ' ; return "${PIPESTATUS[0]}"; }
part_probe() { each check_kernel probe number tensor_core hopper; }

# two_ranks COMMAND…: as two processes on the one GPU, which NCCL takes for two machines. When one has failed, the other has
# 60 s to notice.
two_ranks() {
  local rank bad=0 pids=() limit=120
  echo "\$ $* (two ranks)"
  if [ "$(left)" -lt "$limit" ]; then limit=$(left); fi
  for rank in 0 1; do
    NCCL_HOSTID=rank$rank NCCL_SOCKET_IFNAME=lo RANK=$rank WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 \
      timeout --kill-after=5 "$limit" "$@" 2>&1 &
    pids+=($!)
  done
  wait -n || { echo "a rank ended with code $?" && bad=1; }
  if [ $bad = 1 ]; then
    for _ in {1..60}; do
      if [ -z "$(jobs -r)" ]; then break; fi
      sleep 1
    done
    kill "${pids[@]}" 2>/dev/null
  fi
  wait -n || { echo "a rank ended with code $?" && bad=1; }
  return $bad
}
comm_ranks() { LLMC_TEST_RENDEZVOUS=$scratch/comm-$RANDOM two_ranks "$programs/test/comm" "$@"; }
# fails_clearly TEXT SCENARIO…: both ranks end within 100 s, not with success, and one says why.
fails_clearly() {
  local begin=$SECONDS text=$1
  if comm_ranks "${@:2}" >"$scratch/out"; then cat "$scratch/out" && echo "FAIL: comm ${*:2} ended well" && return 1; fi
  cat "$scratch/out"
  if ! grep -qF -- "$text" "$scratch/out" || [ $((SECONDS - begin)) -gt 100 ]; then
    echo "FAIL: comm ${*:2}: not \"$text\" within 100 s (took $((SECONDS - begin)) s)" && return 1
  fi
}
check_nccl() {
  local bad=0
  comm_ranks || { echo "FAIL: collectives of two ranks" && bad=1; }
  fails_clearly "not done within 20 s" stay-away 1 || bad=1
  fails_clearly "trouble of one rank" fail-one 1 || bad=1
  return $bad
}
part_check() {
  local bad=0
  each check_kernel $(kernels | grep -vE '^(probe|number|tensor_core|hopper)$') || bad=1
  run 60 "$programs/test/comm" || bad=1
  on_gpu "NCCL between two processes" check_nccl || bad=1
  return $bad
}

check_dump() { run 120 "$programs/test_llama" "$1"; }
part_parity() { each check_dump dev/reference/dumps/*; }

bench_kernel() { run 200 "$programs/kernels/$1" bench; }
part_bench() { each bench_kernel $(kernels); }

quiet=(--val-every 0 --sample-every 0 --export off)
train_1b() {
  python3 - "$scratch/random.bin" <<'PYTHON' || { echo "FAIL: random tokens" && return 1; }
import array, random, sys
random.seed(1)
header = array.array("i", [20240801, 7, 4_000_000] + [0] * 253)  # llm.c's token file, of uint32
with open(sys.argv[1], "wb") as file:
    file.write(header.tobytes() + array.array("I", random.choices(range(128256), k=4_000_000)).tobytes())
PYTHON
  train_1b_in off || return 1
  cp "$scratch/trace-off.json" "$results/gpu_trace.json" # of its third step, for ui.perfetto.dev
  each train_1b_in tensorwise delayed rowwise rowwise-hp-wgrad blockwise || return 1
  cp "$scratch/trace-tensorwise.json" "$results/gpu_trace_fp8.json"
  train_1b_in off --tune-products
}
train_1b_in() { # RECIPE [--tune-products]
  local name=$1${2:-}
  run 100 "$programs/train_llama" --model dev/bench/llama3.2-1b.json --train-data "$scratch/random.bin" --seq-len 2048 \
    --micro-batch 4 --global-batch 4 --steps 20 "${quiet[@]}" --fp8 "$1" --trace "$scratch/trace-$name.json" --out "$scratch/1b-$name" "${@:2}" || return 1
  steps_of "$scratch/1b-$name" step_ms | awk -v recipe="$1 ${2:-}" 'NR > 5 { ms += $1; n++ } END { printf "--fp8 %s: mean of the steps after the first 5: %.0f tok/s\n", recipe, 8192 * n / ms * 1000 }'
}
steps_of() { sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$1/train.jsonl"; } # FOLDER KEY: a figure a step
# largest_difference A B: of the losses of 20 steps.
largest_difference() {
  paste <(steps_of "$1" loss) <(steps_of "$2" loss) | awk '{ d = $1 - $2; if (d < 0) d = -d; if (d > w) w = d; if (!(d >= 0)) bad = 1 }
    END { if (bad || NR != 20) print "nan"; else printf "%.3e", w }'
}
# 20 losses of two ranks that share the state, products or sequences out differ from those of one by no more than 3 times what the order does in
# which one rank adds its micro-batches: in bf16 every other order of a sum rounds otherwise.
train_two_ranks() {
  local B way spread=0 d steps=(--steps 20 "${quiet[@]}" --global-batch 16 --dtype bf16)
  for B in 16 8 4 2 1; do
    run 60 "$programs/train_llama" "${steps[@]}" --micro-batch $B --out "$scratch/one$B" >"$scratch/out" || { cat "$scratch/out" && return 1; }
    d=$(largest_difference "$scratch/one16" "$scratch/one$B")
    echo "one rank, micro-batches of $B: its losses differ by $d"
    spread=$(awk -v a="$spread" -v b="$d" 'BEGIN { print (b == "nan" || b > a) ? b : a }')
  done
  for way in "--zero-stage 0" "--zero-stage 3" "--tensor-parallel-degree 2" "--context-parallel-degree 2"; do # shellcheck disable=SC2086
    two_ranks "$programs/train_llama" "${steps[@]}" $way --rendezvous "$scratch/train-$RANDOM" --out "$scratch/two${way// /}" || { echo "FAIL: a training on two ranks, $way" && return 1; }
    d=$(largest_difference "$scratch/one16" "$scratch/two${way// /}")
    echo "two ranks, $way: the losses differ from one rank's by $d; 3 times its own: $spread x 3"
    awk -v d="$d" -v s="$spread" 'BEGIN { exit !(d != "nan" && s != "nan" && d + 0 <= 3 * s) }' || { echo "FAIL: more than 3 times what another order of the sums does" && return 1; }
  done
}
# Choices that were read from a file are those that were found: the same losses to the last digit.
train_tuned() {
  run 120 "$programs/train_llama" --steps 20 "${quiet[@]}" --tune-products --out "$scratch/tuned" || return 1
  run 60 "$programs/train_llama" --steps 20 "${quiet[@]}" --tuning "$scratch/tuned/tuning.json" --out "$scratch/tuned-again" || return 1
  cmp <(steps_of "$scratch/tuned" loss) <(steps_of "$scratch/tuned-again" loss) || { echo "FAIL: --tuning has other losses than --tune-products" && return 1; }
}
# Steps that are launched as a whole have the bits of those that are enqueued piece by piece.
train_graphs() { # OPTIONS, as one word
  local way steps=(--steps 20 "${quiet[@]}" --dtype bf16 --micro-batch 4 --global-batch 12)
  for way in off on; do # shellcheck disable=SC2086
    run 60 "$programs/train_llama" "${steps[@]}" $1 --cuda-graphs $way --out "$scratch/graphs-$way" >"$scratch/out" || { cat "$scratch/out" && return 1; }
    steps_of "$scratch/graphs-$way" loss >"$scratch/losses-$way"
    rm -rf "$scratch/graphs-$way"
  done
  cmp "$scratch/losses-on" "$scratch/losses-off" || { echo "FAIL: other losses with --cuda-graphs: $1" && return 1; }
  echo "--cuda-graphs on and off: the same 20 losses ${1:-in bf16}"
}
# The same of two ranks: NCCL's collectives are part of what is captured.
train_two_ranks_graphs() { # OPTIONS, as one word
  local way steps=(--steps 20 "${quiet[@]}" --dtype bf16 --micro-batch 4 --global-batch 16)
  for way in off on; do # shellcheck disable=SC2086
    two_ranks "$programs/train_llama" "${steps[@]}" $1 --cuda-graphs $way --rendezvous "$scratch/graphs-$RANDOM" --out "$scratch/two-graphs-$way" || { echo "FAIL: two ranks, --cuda-graphs $way: $1" && return 1; }
    steps_of "$scratch/two-graphs-$way" loss >"$scratch/losses-$way"
    rm -rf "$scratch/two-graphs-$way"
  done
  cmp "$scratch/losses-on" "$scratch/losses-off" || { echo "FAIL: two ranks have other losses with --cuda-graphs: $1" && return 1; }
  echo "two ranks, --cuda-graphs on and off: the same 20 losses ${1:-in bf16}"
}
part_train() {
  local bad=0 kinds=("" "--fp8 tensorwise" "--fp8 delayed --fp8-stats 5" "--layers 6 --activation-offload attention --offload-optimizer --offload-gradients")
  if [ -n "$gpu" ]; then kinds+=("--model dev/bench/llama3.2-1b.json --layers 2 --seq-len 512"); fi # heads of 64: tensor cores' attention
  each train_graphs "${kinds[@]}" || bad=1
  run 120 "$programs/train_llama" --steps 20 --out "$scratch/tiny" || bad=1
  train_tuned || bad=1
  return $bad
}
two_ranks_alike() {
  local bad=0
  train_two_ranks || bad=1
  each train_two_ranks_graphs "--zero-stage 0" "--zero-stage 3" "--zero-stage 3 --fp8 tensorwise --fp8-all-gather" \
    "--tensor-parallel-degree 2 --fp8 tensorwise" "--context-parallel-degree 2" || bad=1
  return $bad
}
part_train_ranks() { on_gpu "a training by two processes" two_ranks_alike; }
part_train_1b() { on_gpu "llama3.2-1b on random tokens" train_1b; }

# How far a step is from what its FLOPs and bytes allow, by class of work: Llama-3.2-1B, and Llama-3-8B's shape in as many
# layers as fit; or a small model in a rehearsal.
part_roofline() {
  local bad=0 recipe small=(--seq-len 64 --micro-batch 4 --global-batch 4 --soak 2 --steps 3)
  for recipe in off tensorwise; do
    if [ -z "$gpu" ]; then
      run 60 "$programs/bench/train" "${small[@]}" --fp8 $recipe || bad=1
      continue
    fi
    run 110 "$programs/bench/train" --model dev/bench/llama3.2-1b.json --seq-len 4096 --micro-batch 8 --global-batch 8 --fp8 $recipe || bad=1
    run 110 "$programs/bench/train" --model llama3-8b --fit --seq-len 8192 --micro-batch 1 --global-batch 1 --fp8 $recipe || bad=1
  done
  on_gpu "llama3.2-1b and llama3-8b in part, and rates of a GPU" true
  return $bad
}

# What each policy of memory costs: Llama-3-8B's shape in 8 layers, or a small model in a rehearsal.
part_memory() {
  local bad=0 small=(--model tiny --layers 4 --seq-len 64 --steps 4 --dtype bf16)
  if [ -n "$gpu" ]; then small=(); fi
  run 60 "$programs/bench/host_copies" || bad=1
  run 400 python3 dev/bench/memory_policies --program "$programs/train_llama" "${small[@]}" || bad=1
  on_gpu "the times of the policies, and what the driver says of memory" true
  return $bad
}

# The steps by which the field tells its gains.
part_ladder() {
  if [ -z "$gpu" ]; then run 240 dev/bench/ladder --steps 20 && on_gpu "the ladder of llama3.2-1b" true; return; fi
  run 440 dev/bench/ladder --program "$programs/train_llama" --model dev/bench/llama3.2-1b.json --seq-len 4096 --micro-batch 2 --steps 100
}

# with_torch FUNCTION: if some Python has it.
with_torch() {
  python=python3
  if [ -z "$gpu" ] && [ -x build/pytorch/bin/python ]; then python=build/pytorch/bin/python; fi
  if ! "$python" -c 'import torch, transformers' 2>/dev/null; then echo "waits for python3 with torch and transformers" && return; fi
  "$@"
}
# ratio AT_LEAST OPTIONS…: both programs in turn.
ratio() {
  run 440 dev/bench/pytorch_ratio --program "$programs/train_llama" --python "$python" --at-least "$1" --steps 25 --rounds 2 --ours=--cuda-graphs "${@:2}"
}
# In 6 layers, fp32 moments: what both programs fit into 80 GB (PyTorch takes 20 bytes a parameter and the logits in fp32).
shape_1b=(--model dev/bench/llama3.2-1b.json --seq-len 4096 --batch 2) shape_8b=(--model dev/bench/llama3-8b.json --layers 6 --seq-len 8192 --batch 1)
tiny_ratio() {
  echo "waits for a GPU: llama3.2-1b beside PyTorch; meanwhile the preset tiny on the CPU"
  run 300 dev/bench/pytorch_ratio --python "$python" --steps 10 --rounds 1
}
attention_ratio() { run 90 env PYTHON="$python" dev/bench/attention "$programs"; }
part_pytorch() {
  if [ -z "$gpu" ]; then with_torch tiny_ratio && return; fi
  with_torch attention_ratio && with_torch ratio 1.0 "${shape_1b[@]}"
}
# In FP8 only compiled code is quick.
part_pytorch_fp8() { on_gpu "llama3.2-1b in FP8 beside PyTorch" with_torch ratio 1.0 "${shape_1b[@]}" --fp8 --compiled; }
part_pytorch8b() { on_gpu "llama3-8b's shape beside PyTorch" with_torch ratio 1.0 "${shape_8b[@]}"; }
part_pytorch8b_fp8() { on_gpu "llama3-8b's shape in FP8 beside PyTorch" with_torch ratio 0.85 "${shape_8b[@]}" --fp8 --compiled; }

table="" failed=0
for part in "${parts[@]}"; do
  log=$state/$part.txt kept=$results/gpu_$part.txt
  if [ -z "$gpu" ]; then kept=/dev/null; fi
  if [ "$(cat "$state/$part" 2>/dev/null)" = "$key" ] && [ "$part" != build ]; then
    if [ -n "$gpu" ]; then cp "$log" "$kept"; fi
    table+=$(printf '%-13s done before' "$part")$'\n'
    continue
  fi
  part_begin=$SECONDS part_limit=450 # seconds
  {
    echo "command  scripts/gpu_check.sh $part"
    echo "date     $(date -u +'%Y-%m-%d %H:%M UTC'), commit $(git rev-parse --short HEAD 2>/dev/null || echo unknown)"
    echo "GPU      ${gpu:-none: a rehearsal in the CPU world}"
    echo
  } | tee "$log" "$kept"
  set +e
  "part_$part" 2>&1 | tee -a "$log" "$kept"
  code=${PIPESTATUS[0]}
  set -e
  waits=$(grep '^waits for' "$log" || true)
  if [ "$code" != 0 ]; then says=FAIL && failed=$((failed + 1))
  elif [ -n "$waits" ]; then says="ok, some waits"
  else says=ok && echo "$key" >"$state/$part"; fi
  table+=$(printf '%-13s %-16s %4s s' "$part" "$says" "$((SECONDS - part_begin))")$'\n'
  if [ -n "$waits" ]; then table+=$(sed 's/^/                /' <<<"$waits")$'\n'; fi
done
echo
printf '%s' "$table"
[ "$failed" = 0 ]
