#!/usr/bin/env bash
# Covers: the CUDA build trains on the software GPU as the CPU backend does: bf16, graphs, FP8 with offload, ZeRO-3 on two
# ranks, Muon, tensor x context parallelism on four, head size 64 with both attention kernels; in lazy and random streams
# Programs: train_llama
# Timeout: 900
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
options=(--steps 3 --val-every 0 --sample-every 0 --export off --micro-batch 2 --global-batch 8 --seq-len 64 --dtype bf16)
cat >"$scratch/head64.json" <<'JSON'
{"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
 "intermediate_size": 256, "vocab_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
JSON

# trains NAME RANKS PROGRAM OPTIONS…: into $scratch/NAME, without a warning of the software GPU, as of a step's collective in
# a stream of low priority
trains() {
  local code=0
  limit=400 ranks "$2" "$3" "${options[@]}" --out "$scratch/$1" "${@:4}" >"$scratch/$1.log" 2>&1 || code=$?
  if [ $code = 0 ] && grep "software GPU: warning" "$scratch/$1.log"; then code=1; fi
  if [ $code != 0 ]; then cat "$scratch/$1.log"; fi
  [ $code = 0 ]
}
# figures NAME: the loss and the gradients' norm of each step, with all digits
figures() { grep -oE '"(loss|grad_norm)":[^,]*' "$scratch/$1/train.jsonl"; }

# near GPU CPU: the first loss within 2e-4, later ones within 2e-3, relative. Products and exponentials are rounded
# elsewhere in the two; Adam's first steps have the size of the learning rate whatever the gradient is, so a sign that
# flips near 0 shows in the next loss.
near() {
  paste <(grep -oE '"loss":[^,]*' "$scratch/$1/train.jsonl") <(grep -oE '"loss":[^,]*' "$scratch/$2/train.jsonl") |
    awk -F '[:\t]' '{ e = ($2 - $4) / $4; if (e < 0) e = -e; printf "%s%.1e", (NR > 1 ? ", " : "     "), e
                      if (!(e <= (NR == 1 ? 2e-4 : 2e-3))) bad = 1; } END { print ""; exit bad || NR != 3 }'
}

as_on_the_cpu() { # NAME RANKS OPTIONS…
  check "$1: trains on the software GPU" trains "$1" "$2" "$build/train_llama" "${@:3}"
  check "$1: trains on the CPU" trains "cpu-$1" "$2" "$root/build/cpu/train_llama" "${@:3}"
  check "$1: the same losses" near "$1" "cpu-$1"
}
as_on_the_cpu bf16 1 --model tiny
as_on_the_cpu fp8 1 --model tiny --fp8 delayed --activation-offload all --offload-optimizer --offload-weights
as_on_the_cpu zero3 2 --model tiny --zero-stage 3 --fp8 tensorwise --fp8-all-gather
as_on_the_cpu muon 1 --model tiny --optimizer muon
as_on_the_cpu muon2 2 --model tiny --optimizer muon --zero-stage 2
as_on_the_cpu parallel 4 --model tiny --tensor-parallel-degree 2 --context-parallel-degree 2
as_on_the_cpu hopper 1 --model "$scratch/head64.json" --attention hopper
as_on_the_cpu mma 1 --model "$scratch/head64.json" --attention mma

same_bits() { diff <(figures "$1") <(figures "$2"); }
again() { # NAME AS RANKS OPTIONS…: with these variables or options the bits are those of AS
  check "$1" trains "${1// /-}" "$3" "$build/train_llama" "${@:4}"
  check "$1: the same bits as $2" same_bits "$2" "${1// /-}"
}
again "bf16 with graphs" bf16 1 --model tiny --cuda-graphs
LLMC_CPU_STREAMS=lazy again "bf16 in lazy streams" bf16 1 --model tiny
again "muon with graphs" muon 1 --model tiny --optimizer muon --cuda-graphs
export LLMC_CPU_STREAMS=random
again "fp8 on use with graphs in random streams" fp8 1 --model tiny --fp8 delayed --fp8-weights on-use --activation-offload all --offload-optimizer \
  --offload-weights --cuda-graphs
again "zero3 with graphs in random streams" zero3 2 --model tiny --zero-stage 3 --fp8 tensorwise --fp8-all-gather --cuda-graphs
again "muon2 as ZeRO-3 with graphs in random streams" muon2 2 --model tiny --optimizer muon --zero-stage 3 --cuda-graphs
again "parallel with graphs in random streams" parallel 4 --model tiny --tensor-parallel-degree 2 --context-parallel-degree 2 --cuda-graphs
check "seen failing: another seed has other losses" trains seed 1 "$build/train_llama" --model tiny --seed 7
if near seed cpu-bf16; then fail "losses of another seed pass"; fi
echo "$checks checks passed"
