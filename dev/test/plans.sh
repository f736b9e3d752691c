#!/usr/bin/env bash
# Covers: memory that is not there: a run that does not fit ends at its start with what takes most and what would save
# most; --plan auto chooses of what fits the fastest, on all ranks the same, and with the same micro-batch changes no bit
# Covers: a dry run's predicted speed is that of the benchmarks, and names the rates that no GPU has confirmed
# Timeout: 300
# Turn: 2
# Programs: bench/roofline bench/scale bench/meshes bench/published
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
export LLMC_THREADS=1

head -c 30000 "$root/dev/data/tinyshakespeare.txt" >text.txt
short=(--train-data text.txt --layers 4 --seq-len 64 --global-batch 8 --steps 3 --warmup-steps 1 --val-every 0 --sample-every 0)
# A limit that the plan in FILE just meets: its MiB have three digits.
just() { sed -n 's/^ *device, total *\([0-9.]*\) MiB.*/\1/p' "$1" | awk '{ print $1 * 1.005 "MiB" }'; }

with_pinned() { LLMC_CPU_PINNED=$1 ranks "${@:2}"; } # BYTES RANKS COMMAND…

echo "-- what does not fit"
shows "a plan says whether it fits" "^it fits: .* of the .* of CPU (1 thread), .* of the host" --dry-run "${short[@]}"
for n in 1 2; do
  refused "$n: more than the device" "it does not fit: " ranks $n "$train" "${short[@]}" --memory-limit 10MiB
  check "  with what it needs by category" grep -q "activations  *[0-9.]* MiB" refused
  check "  and what needs less" grep -q " of the device and .* of the host with --recompute block" refused
  check "  and what would choose" grep -q -- "--plan auto chooses" refused
  refused "$n: more than the host" "and has $((24 + 12 * n)).0 MiB" ranks $n "$train" "${short[@]}" --offload-optimizer --host-memory-limit $((24 + 12 * n))MiB
  check "  and without what it would" grep -q "which fits, with --offload-optimizer off" refused
  refused "$n: nothing that fits" "nothing of this fits" ranks $n "$train" "${short[@]}" --plan auto --memory-limit 1MiB
done
check "no run's folder is left by what was refused" eval '[ ! -e runs ]'
echo "-- what sharding would save"
unfit=(--dry-run --nodes 1 --model llama3-8b --seq-len 8192 --global-batch 8 --context-parallel-degree)
for degree in 1 2 8; do
  "$train" "${unfit[@]}" $degree >unfit.txt || [ $? = 2 ]
  check "8 ranks, of which $degree split each sequence, would shard the state" grep -q -- "--zero-stage 3 shards .* over 8 ranks" unfit.txt
done
"$train" "${unfit[@]}" 1 --hybrid-shard-degree 1 >unfit.txt || [ $? = 2 ]
check "replicas would not" eval '! grep -q -- "--zero-stage 3 shards" unfit.txt'
refused "replicas, of which none shards" "it does not fit: " ranks 2 "$train" "${short[@]}" --memory-limit 10MiB --hybrid-shard-degree 1
check "  are not told to" eval '! grep -q -- "--zero-stage 3" refused'
ranks 2 "$train" --dry-run "${short[@]}" --zero-stage 3 --hybrid-shard-degree 1 >whole.txt
check "  and the banner says why" grep -q "every rank keeps the whole state (--hybrid-shard-degree 1)" whole.txt
host=(--dry-run "${short[@]}" --micro-batch 4 --activation-offload all --activation-loading-horizon 1 --host-memory-limit 40MiB)
ranks 1 "$train" "${host[@]}" >one.txt
ranks 2 "$train" "${host[@]}" >two.txt || [ $? = 2 ]
check "one rank fits the host" grep -q "^it fits" one.txt
check "two ranks of a node together do not" grep -q "^it does not fit: .*, for 2 ranks" two.txt
echo "-- a limit of the host that is not the system's"
shows "a limit beyond what the host has is a warning" "^warning: --host-memory-limit 900TiB: the system says that this process can have [0-9.]* [GT]iB of the host" "${host[@]/40MiB/900TiB}"
check "  and what the plan counts on" grep -q "^it fits: .* of the 900 TiB of the host" log
check "one within it is none" eval '! grep -q "^warning: --host-memory-limit" one.txt'
ranks 2 "$train" "${short[@]}" --offload-optimizer --host-memory-limit 900TiB --out beyond >beyond.txt
check "two ranks train with such a limit, and say so once" [ "$(grep -c "^warning: --host-memory-limit" beyond.txt)" = 1 ]
for n in 1 2; do
  refused "$n: memory that cannot be pinned" "the host cannot pin" with_pinned 1000000 $n "$train" "${short[@]}" --activation-offload all --out unpinned
  check "  with the way out" grep -q "ulimit -l" refused
done
check "  and no folder" eval '[ ! -e unpinned ]'
"$train" --dry-run "${short[@]}" --gpu H100 --plan mesh >mesh-here.txt
check "--plan mesh is for what is not here, such as a GPU" grep -q "^--plan mesh: " mesh-here.txt
refused "  and for no training" "--plan mesh: it searches the meshes of a cluster that is not here" "$train" "${short[@]}" --gpu H100 --plan mesh
refused "a GPU that is not here is for one process" "--gpu H100: it is for --dry-run, by one process" ranks 2 "$train" --dry-run "${short[@]}" --gpu H100
refused "a horizon of no block" "--activation-loading-horizon" "$train" "${short[@]}" --activation-offload input --activation-loading-horizon 0
for size in 80GX GiB -5 80GiBs 0 80; do
  refused "a limit of $size" "--memory-limit $size: expected a size with its unit" "$train" "${short[@]}" --memory-limit=$size
done

echo "-- what is chosen"
chosen() { sed -n 's/^chosen: //p' "$1"; }
"$train" --dry-run "${short[@]}" --plan auto >auto.txt
check "what fits as it is stays as it is: $(chosen auto.txt)" [ "$(chosen auto.txt)" = "--micro-batch 8" ]
"$train" --dry-run "${short[@]}" --micro-batch 8 --recompute block >block.txt
within=$(just block.txt)
"$train" --dry-run "${short[@]}" --micro-batch 8 --plan auto --memory-limit "$within" >tight.txt
check "within $within: $(chosen tight.txt)" [ "$(chosen tight.txt)" = "--recompute block" ]
check "  which fits" grep -q "^it fits" tight.txt
check "  others are said not to" grep -q "^ *[0-9.]* MiB! .*% --recompute mlp$" tight.txt
check "its speeds on a CPU are an H100's" grep -q "^(at the rates of an H100: those of CPU (1 thread) are not known)$" tight.txt
"$train" "${short[@]}" --plan auto --memory-limit 20MiB --checkpoint-every 3 --out own >own.txt
check "a training says that it has chosen its micro-batch: $(chosen own.txt)" grep -q "^ *micro-batch [124]: chosen by --plan auto$" own.txt
size=$(sed -n 's/^ *micro-batch \([124]\): chosen by --plan auto$/\1/p' own.txt)
shows "  and keeps it where there is more room" "1 rank x $((8 / size)) micro-batch\(es\)\? of $size;" --resume own --memory-limit 1GiB --steps 4 --out further
"$train" --dry-run --nodes 1 --gpus-per-node 1 --gpu H100 --model llama3-8b --plan auto >rehearsed.txt
check "for a GPU that is not here, too: $(chosen rehearsed.txt)" grep -q "^chosen: .*--offload-optimizer" rehearsed.txt
check "  and its plan" grep -q "host optimizer" rehearsed.txt

echo "-- what the plan reserves for the driver and the libraries of a GPU"
model=(--dry-run --nodes 1 --gpu H100 --model llama3.2-1b --seq-len 4096 --micro-batch 1)
gpu=("${model[@]}" --gpus-per-node 1)
said() { # FILE WHAT: the figure of a line of the plan
  sed -n "s/^ *\(memory  *\)\?$2  *\([0-9.]* [KMGT]\?i\?B\)\$/\2/p" "$1"
}
reserves() { grep "reserve for" "$1" | sed 's/^ *//; s/   */: /' | paste -sd '|'; }
"$train" "${gpu[@]}" >alone.txt
check "a GPU by itself: $(reserves alone.txt)" [ "$(reserves alone.txt)" = "reserve for CUDA and cuBLASLt: 1.50 GiB" ]
"$train" "${gpu[@]}" --attention plain >stack.txt
check "plain attention: $(reserves stack.txt)" [ "$(reserves stack.txt)" = "$(reserves alone.txt)|reserve for plain attention's stack: 417 MiB" ]
need=$(said alone.txt "device and reserve") total=$(said alone.txt "device, total")
check "$total are planned, and $need needed" [ "$(said stack.txt "device, total")" = "$total" ]
refused "  of which the reserve is a part" "(of which 1.50 GiB reserved) and has $total (--memory-limit; NVIDIA H100" "$train" "${gpu[@]}" --memory-limit "${total/ /}"
shows "  within it" "it fits: $need (of which 1.50 GiB reserved) of the " "${gpu[@]}" --memory-limit "$(awk "BEGIN { print ${need% *} + 0.1 }")GiB"
# Each rank of a node gathers and reduces its shards among all; in a group of tensor or context parallelism it has more.
nccl() { # EXPECTED OPTION…
  "$train" "${model[@]}" --gpus-per-node 8 --global-batch 8 "${@:2}" >nccl.txt
  check "8 ranks ${*:2}: $(reserves nccl.txt)" [ "$(reserves nccl.txt)" = "$(reserves alone.txt)|reserve for NCCL, $1" ]
}
nccl "3 communicators: 864 MiB" --zero-stage 3
nccl "4 communicators: 1.12 GiB" --zero-stage 3 --hybrid-shard-degree 4
nccl "5 communicators: 1.41 GiB" --tensor-parallel-degree 8
nccl "7 communicators: 1.97 GiB" --tensor-parallel-degree 4
nccl "9 communicators: 2.53 GiB" --tensor-parallel-degree 2 --context-parallel-degree 2
"$train" --dry-run "${short[@]}" >cpu.txt
check "a CPU has no driver" eval '! grep -q reserve cpu.txt'

echo "-- meshes that are not here"
cluster=(--dry-run --model llama3-8b --nodes 128 --seq-len 8192 --zero-stage 3 --global-batch 512)
refused "fewer sequences than ranks" "let 2 ranks compute a sequence together" "$train" "${cluster[@]}"
refused "fewer sequences than groups" "let 8 ranks compute a sequence together" "$train" "${cluster[@]/512/128}" --tensor-parallel-degree 4
refused "a degree that no head can be shared by" "choose one of: 1, 2, 4, 8, 16, 32" "$train" "${cluster[@]/128/3}" --tensor-parallel-degree 3 --context-parallel-degree 2
"$train" "${cluster[@]}" --tensor-parallel-degree 4 --context-parallel-degree 2 --plan auto >mesh.txt
check "ranks that compute together share their tokens: $(chosen mesh.txt)" [ "$(chosen mesh.txt)" = "--micro-batch 4" ]
check "  in groups" grep -q "512 sequences of 8192 tokens: 128 groups of 8 ranks x 1 micro-batch of 4" mesh.txt
check "  with what each waits for" grep -q "it waits .* for tensor parallelism" mesh.txt
"$train" "${cluster[@]/llama3-8b/llama3.1-405b}" --tensor-parallel-degree 2 >large.txt || [ $? = 2 ]
check "what is too large is told what would choose" grep -q -- "--plan auto chooses" large.txt
check "  and that it is more" grep -q "it does not fit: the device needs .* and has 79.1 GiB (NVIDIA H100" large.txt

echo "-- what waits are for"
"$train" --dry-run --nodes 2 --gpus-per-node 4 --gpu H100 --model llama3.2-1b --zero-stage 3 --tensor-parallel-degree 2 \
  --context-parallel-degree 2 --seq-len 4096 --micro-batch 1 --activation-offload all >waits.txt
for purpose in weights gradients "tensor parallelism" "context parallelism" "copies to the host" "copies from the host"; do
  check "$purpose" grep -q "^ *it waits.* ms for $purpose[,]*" waits.txt
done
echo "-- one predicted speed: 8B on 8 H100"
node=(--dry-run --nodes 1 --model llama3-8b --seq-len 8192 --zero-stage 3 --micro-batch 1 --global-batch 8)
"$train" "${node[@]}" >bf16.txt
"$train" "${node[@]}" --fp8 tensorwise --fp8-all-gather >fp8.txt
speed() { sed -n 's/^ *predicted  *\([^ ]*\) tokens\/s a GPU.*/\1/p' "$1"; }
for file in bf16 fp8; do
  check "$file: $(speed $file.txt) tokens/s" [ -n "$(speed $file.txt)" ]
  check "  by rates with their sources" grep -q "^ *attention (hopper) backward, head size 128: .* TFLOP/s (measured: " $file.txt
  check "  of which no GPU has confirmed the links" grep -q "^ *(rates that no GPU has confirmed: links)$" $file.txt
done
shows "  nor products by rows" "(rates that no GPU has confirmed: FP8 products, one factor a row; links)" "${node[@]}" --fp8 rowwise
"$train" "${node[@]}" --gpu A100 --recompute block >a100.txt
check "  nor those of an A100" \
  grep -q "(rates that no GPU has confirmed: products in bf16; attention (mma) forward; .*memory; links)" a100.txt
for bench in roofline scale meshes; do
  timeout 100 "$build/bench/$bench" 8b >$bench.txt
  check "$bench says the same: $(cat $bench.txt)" \
    grep -qF "predicted $(speed bf16.txt) tokens/s a GPU in bf16, $(speed fp8.txt) in FP8" $bench.txt
done
"$train" --dry-run --nodes 1 --model llama3.1-8b --seq-len 8192 --zero-stage 3 --micro-batch 2 --global-batch 16 --recompute norms >two.txt
"$build/bench/published" 8b >published.txt
plan=$(said two.txt "device, total") tokens=$(speed two.txt)
check "published has the plan and the speed of a row: $plan, $tokens tokens/s" \
  grep -q "^+ torch.compile  .* norms  *${plan% GiB}  *[0-9.]*  *${tokens%.*}[0-9]* .*%" published.txt
check "--plan auto names them, too" grep -q "(rates that no GPU has confirmed: links)" mesh.txt

echo "-- what a small card trains, within its memory"
cards=("$root/dev/bench/small_cards" --program "$train" --steps 4 --ours "--seq-len 64 --dtype bf16")
"${cards[@]}" "tiny 40MiB" >cards.txt
check "predicted, measured, planned and taken: $(tail -n 1 cards.txt)" grep -qE "^ *[0-9]+ +[0-9]+ +[0-9.]+ MiB +[0-9.]+ MiB  tiny 40MiB: --micro-batch" cards.txt
check "what does not fit is an error" eval '! "${cards[@]}" "tiny 1MiB" >cards.txt && grep -q "tiny 1MiB: error: --plan auto: nothing of this fits" cards.txt'

for n in 1 2; do
  sharing=$([ $n = 1 ] || echo --zero-stage 3)
  # shellcheck disable=SC2086  # words
  run() { ranks $n "$train" "${short[@]}" --micro-batch 2 $sharing --out "$1" "${@:2}" >"$1.txt" 2>&1 || { cat "$1.txt" && fail "the run $1"; }; }
  run plain-$n
  planned=$(said plain-$n/memory.txt "device, total")
  check "$n: the device holds what is planned, and nothing else: $planned" grep -qxF "after the first step $planned of the \
device are taken: $planned are planned, and 0 B lie beside the plan, which reserves 0 B" plain-$n/memory.txt
  run block-$n --recompute block
  within=$(just block-$n.txt)
  run chosen-$n --plan auto --memory-limit "$within" --checkpoint-every 3
  check "$n: within $within, trained with $(chosen chosen-$n.txt)" [ -n "$(chosen chosen-$n.txt)" ]
  check "  which is in the run's options" grep -q "option .*--recompute" chosen-$n.txt
  check "  the plain run's bits" cmp plain-$n/export/model.safetensors chosen-$n/export/model.safetensors
done

# A model whose state is most of it.
odd_model hidden=512 ffn=2048 layers=8
large=(--model "$scratch/odd.json" --train-data "$scratch/letters.txt" --seq-len 8 --micro-batch 1 --global-batch 2 --steps 2
  --warmup-steps 1 --val-every 0 --sample-every 0 --export off)
for n in 1 2; do
  ranks $n "$train" "${large[@]}" --out large-$n >large-$n.txt
  ranks $n "$train" "${large[@]}" --out host-$n --plan auto --memory-limit 350MiB >host-$n.txt
  check "$n: chosen with the state on the host: $(chosen host-$n.txt)" grep -q "chosen: .*--offload-optimizer on" host-$n.txt
  check "  planned so" grep -q "host optimizer" host-$n.txt
  check "  the plain run's losses" cmp <(without_times large-$n/train.jsonl) <(without_times host-$n/train.jsonl)
done
"$train" --dry-run --gpu RTX4090 --model qwen2.5-14b --seq-len 1024 --global-batch 512 --host-memory-limit 512GiB \
  --fp8 tensorwise --fp8-all-gather --plan auto >card.txt
check "a model that is larger than the card: chosen with weights on the host" grep -q "command .*--offload-weights on" card.txt
ranks 2 "$train" --resume chosen-2 --steps 4 >resumed.txt
check "a run that goes on has the limits of where it is, and chooses anew: $(chosen resumed.txt)" [ "$(chosen resumed.txt)" = "as it is" ]
echo '{"activation-offload": "all", "recompute": "none", "sm_activation_offloading": true}' >dashed.json
shows "what a configuration says itself comes before SageMaker's meaning" "option .*--activation-offload all" --dry-run --config dashed.json
echo "$checks checks passed"
