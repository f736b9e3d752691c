#!/usr/bin/env bash
# Covers: --verify-every finds a wrong rank, on 2 to 6 ranks, with tensor parallelism: a flipped bit of weights and moments in
# one of several copies, a wrong product that passes, one that stays; the run ends with exit code 7, and names rank, host and
# process on all ranks alike. No alarm and no other bit where nothing is wrong. The run goes on from the newest verified
# checkpoint
# Timeout: 900
# Turn: 2
#
# VERIFY=every: a sound training in more ways, and 20,000 steps in all.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1
limit=300
program=$build/test/verify

echo "-- sound ranks: no alarm, the same bits, planned memory alone"
sound=("1" "1 precision=delayed graphs" "2" "2 stage=1 graphs precision=bf16" "2 stage=2 gradients state weights tied"
  "2 stage=3 precision=delayed gathered stats=1" "2 tensor=2 precision=tensorwise recompute" "2 context=2 stage=3 muon"
  "3 stage=3 offload narrow precision=bf16" "4 tensor=2 hybrid=1 stage=1 precision=rowwise" "4 hybrid=2 stage=2 bf16-sums"
  "4 tensor=4 heads stage=1")
if [ "${VERIFY:-}" = every ]; then
  for precision in fp32 bf16 tensorwise delayed rowwise rowwise-hp-wgrad blockwise; do
    for stage in 0 1 2 3; do
      sound+=("2 stage=$stage precision=$precision" "4 hybrid=2 stage=$stage precision=$precision tied"
        "4 tensor=2 stage=$stage precision=$precision qwen3" "4 context=2 stage=$stage precision=$precision graphs")
    done
  done
  for stage in 1 2 3; do
    sound+=("2 stage=$stage precision=delayed gathered graphs" "4 tensor=2 stage=$stage precision=tensorwise gathered"
      "2 stage=$stage muon offload recompute" "2 stage=$stage state gradients narrow precision=bf16")
  done
  sound+=("8 tensor=2 context=2 hybrid=1 stage=3" "6 tensor=2 qwen3"
    "8 tensor=4 heads precision=delayed stage=2")
fi
for case in "${sound[@]}"; do
  read -ra words <<<"$case"
  check "${case}" ranks "${words[0]}" "$program" sound "${words[@]:1}"
done

if [ "${VERIFY:-}" = every ]; then
  echo "-- no false alarm in 20,000 steps"
  long=("1 precision=delayed graphs" "2 stage=0 tied" "2 stage=2 precision=bf16 gradients state" "2 stage=3 precision=delayed gathered"
    "2 tensor=2 precision=tensorwise recompute" "2 context=2 stage=3 muon" "2 stage=1 precision=blockwise graphs"
    "4 hybrid=2 stage=2 bf16-sums" "4 tensor=2 precision=rowwise" "3 stage=3 offload precision=bf16")
  for case in "${long[@]}"; do
    read -ra words <<<"$case"
    limit=1000 check "2000 steps of $case" ranks "${words[0]}" "$program" long 2000 "${words[@]:1}"
  done
fi

# flipped RANKS RANK BUFFER BYTE WANT SETTINGS…
flipped() { check "$3 of rank $2 of $1 ${*:6}" ranks "$1" "$program" flipped "${@:2}"; }
echo "-- copies"
down=model.layers.0.mlp.down_proj.weight
flipped 2 1 "weights" 40000 "copies of ranks 0,1?: the weights of model.layers.0.self_attn.v_proj.weight"
flipped 3 1 "weights" 40000 "copies of ranks 1: the weights of model.layers.0.self_attn.v_proj.weight"
flipped 3 2 "first moments" 84003 "copies of ranks 2: the first moments of $down"
flipped 3 0 "second moments" 84003 "copies of ranks 0: the second moments of $down"
flipped 3 2 "master weights" 84003 "copies of ranks 2: the master weights of $down" precision=bf16
flipped 4 3 "first moments" 3 "copies of ranks 1,3?: the first moments of model.embed_tokens.weight" hybrid=2 stage=2
# Norms are on all ranks of a tensor group: with two of them there are four copies.
flipped 4 2 "first moments" 8195 "copies of ranks 2: the first moments of model.layers.0.input_layernorm.weight" tensor=2
# Two ranks of four have the same keys and values.
flipped 4 1 "first moments" 12000 "copies of ranks 0,1?: the first moments of model.layers.0.self_attn.k_proj.weight" tensor=4 heads
# A shard has no copy: its error reaches all ranks with the next gather.
flipped 2 1 "first moments" 30003 "" stage=2

${CC:-cc} -shared -fPIC -O1 -o "$scratch/products.so" "$root/dev/test/product_preload.c"
run dry 1 --dry-run
if ! says dry "products   OpenBLAS" >/dev/null; then
  echo "plain loops compute the products, so nothing can make them wrong"
  exit 0
fi
# wrong RANKS RANK FIRST COUNT WANT SETTINGS…: of the next verification's products, these are wrong on that rank.
wrong() {
  LD_PRELOAD=$scratch/products.so check "$4 wrong product(s) from number $3 on of rank $2 of $1 ${*:6}" \
    ranks "$1" "$program" wrong "${@:2}"
}
echo "-- computations"
# An error that passes: a product of the own micro-batch (o in block 1), one of the other one's backward pass.
wrong 1 0 6 1 "repetition of ranks 0: the losses"
wrong 2 1 6 1 "repetition of ranks 1: the losses"
wrong 3 2 60 1 "repetition of ranks 2: the gradient of model.layers.2.self_attn.o_proj.weight"
wrong 4 1 6 1 "repetition of ranks 0,1?: the losses" tensor=2
# An error that stays.
wrong 2 1 1 1000000 "computation of ranks 0,1?: the losses"
wrong 3 1 1 1000000 "computation of ranks 1: the losses"
wrong 4 3 1 1000000 "computation of ranks 3: the losses" stage=3
wrong 4 2 1 1000000 "computation of ranks 0,2?: the losses" tensor=2
wrong 6 3 1 1000000 "computation of ranks 3: the losses" tensor=2
wrong 6 4 1 1000000 "computation of ranks 4: the losses" context=2 stage=3

echo "-- the program"
options=(--layers 1 --seq-len 16 --global-batch 6 --warmup-steps 2 --val-every 0 --sample-every 0 --checkpoint-every 1
  --keep-checkpoints 1)
eight=(--steps 8 --verify-every 2) four=(--steps 4 --schedule constant --verify-every 2)
# products NAME: how many products the run had that was started with PRODUCTS_LOG=$scratch/NAME.products, on each rank.
products() { sed -n 's/^products //p' "$scratch/$1.products"; }
# ends_with CODE NAME RANKS ARGUMENTS…: a training with wrong products ends so.
ends_with() {
  local code=0
  LD_PRELOAD=$scratch/products.so ranks "$3" "$train" --out "$scratch/$2" "${options[@]}" "${@:4}" >"$scratch/$2.txt" 2>&1 </dev/null || code=$?
  [ "$code" = "$1" ] || { cat "$scratch/$2.txt" && fail "$2: exit code $code"; }
}
has() { [ -e "$scratch/$1" ]; }
json() { python3 -c "import json, sys; print(eval(sys.argv[2], json.load(open(sys.argv[1]))))" "$scratch/$1" "$2"; }

run whole 3 "${eight[@]}"
check "each verification is told" [ "$(grep -c "verified in .*: the same bits on all ranks" "$scratch/whole.txt")" = 4 ]
check "the checkpoint before the last one is verified, and kept" has "whole/checkpoints/step-00000007/verified.json"
check "  that of its step is not, for it was copied afterwards" not has "whole/checkpoints/step-00000008/verified.json"
run plain 3 --steps 8
check "the weights are those of a run without it" same_weights whole plain
check "  and so are the losses" alike_lines whole plain <(losses "$scratch/whole/train.jsonl") <(losses "$scratch/plain/train.jsonl")
LD_PRELOAD=$scratch/products.so PRODUCTS_LOG=$scratch/four.products run four 3 "${four[@]}"
after=$(($(products four) + 1)) # the first product of step 5

PRODUCTS_WRONG=$after-100000000 PRODUCTS_RANK=1 ends_with 7 found 3 "${eight[@]}"
said="after step 6 rank 1 (host $(hostname), process "
check "the wrong rank is named" grep -q "^error on .*: $said[0-9]*) computes other bits than other ranks from the same" "$scratch/found.txt"
check "  and where the run goes on" says found "the run goes on from $(checkpoint found 3)"
check "the mark has it" [ "$(json found/wrong_gpu.json '[step, ranks, certain, hosts, checkpoint]')" = "[6, [1], True, ['$(hostname)'], 'step-00000003']" ]
check "the verified checkpoint is kept, though others are newer" has "found/checkpoints/step-00000003/verified.json"
check "  which are not verified" not has "found/checkpoints/step-00000005/verified.json"
check "  nor is the state saved in which it was found" not has "found/checkpoints/step-00000006"
tells "the next start knows" "the run had ended with a wrong GPU: after step 6 rank 1" resume found 3 auto
check "  it sets the newer checkpoint aside" has "found/checkpoints/step-00000005.refused"
check "  and the mark" has "found/wrong_gpu.step-00000006.json"
check "    for good" not has "found/wrong_gpu.json"
check "  it ends as if nothing had been" same whole found

PRODUCTS_WRONG=1-100000000 PRODUCTS_RANK=0 ends_with 7 early 2 "${eight[@]}"
check "two ranks are both named" grep -q "after step 2 rank 0 (.*) or rank 1 (.*) computes other bits" "$scratch/early.txt"
check "  no checkpoint is verified" says early "no checkpoint is verified, so the run goes on from where this start began"
run two 2 "${eight[@]}"
tells "the run begins again" "step 1/8" resume early 2 auto
check "  and ends as if nothing had been" same two early

LD_PRELOAD=$scratch/products.so PRODUCTS_LOG=$scratch/alone.products run alone 1 "${four[@]}"
last=$(($(products alone) - 3)) # in the last verification
PRODUCTS_WRONG=$last-$last ends_with 7 passing 1 "${four[@]}"
check "alone, a rank that does not repeat itself" grep -q "after step 4 rank 0 (.*) computes other bits than before" "$scratch/passing.txt"

echo "-- a step that would end the run"
for n in 1 2; do
  LD_PRELOAD=$scratch/products.so PRODUCTS_LOG=$scratch/off$n.products run off$n $n --steps 4 --schedule constant
  last=$(($(products off$n) - 3)) # in the backward pass of the last step
  PRODUCTS_NAN=$last-$last PRODUCTS_RANK=0 ends_with 7 nan$n $n --steps 4 --schedule constant
  check "$n: a NaN that does not come again is the machine's" says nan$n "a rank that is not known computes other bits the second time: step 4 had"
  check "$n: without verifications there is no mark" not has nan$n/wrong_gpu.json
done
echo "$checks checks passed"
