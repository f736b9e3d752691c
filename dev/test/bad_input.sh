#!/usr/bin/env bash
# Covers: bad input: each a clear message and an exit code other than 0, on one rank and on two
# Timeout: 300
# Alone: its ranks take all cores
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"

# header FILE MAGIC VERSION TOKENS: an llm.c header; TOKENS is what it claims.
header() {
  {
    printf "$(printf '\\x%02x\\x%02x\\x%02x\\x%02x' $(($2 & 255)) $(($2 >> 8 & 255)) $(($2 >> 16 & 255)) $(($2 >> 24 & 255)))"
    printf "$(printf '\\x%02x\\0\\0\\0' "$3")"
    printf "$(printf '\\x%02x\\x%02x\\0\\0' $(($4 & 255)) $(($4 >> 8 & 255)))"
    head -c $((1024 - 12)) /dev/zero
  } >"$1"
}
header truncated.bin 20240520 1 5000
head -c 4000 /dev/zero >>truncated.bin
header magic.bin 20240599 1 1000
head -c 2000 /dev/zero >>magic.bin
header good.bin 20240520 1 1000
head -c 2000 /dev/zero >>good.bin
header token.bin 20240520 1 1000
{ head -c 1998 /dev/zero && printf '\x2c\x01'; } >>token.bin # the last token is 300
: >empty.txt

short="--steps 1 --val-every 0 --sample-every 0"
"$train" --layers 1 $short --seq-len 16 --global-batch 1 --out good >good.txt 2>&1 || { cat good.txt && fail "a good run"; }
cp -r good/export cut && head -c 100000 good/export/model.safetensors >cut/model.safetensors
cp -r good/export missing && rm missing/model.safetensors
cp -r good/export shape && sed -i 's/"intermediate_size": 384/"intermediate_size": 385/' shape/config.json
cp -r good/export heads && sed -i 's/"num_key_value_heads": 2/"num_key_value_heads": 3/' heads/config.json
cp -r good/export dropout && sed -i 's/"attention_bias": false/"attention_dropout": 0.1, &/' dropout/config.json
sed 's/"attention_bias": false/"sliding_window": 64, &/' good/export/config.json >window.json
sed 's/"vocab_size": 256/"vocab_size": 300/' good/export/config.json >large.json
"$train" --model large.json $short --seq-len 16 --global-batch 1 --train-data good.bin --out large \
  >large.txt 2>&1 || { cat large.txt && fail "a model of 300 tokens"; }
mkdir full && touch full/something
cp good/export/model.safetensors lonely.safetensors
cp -r good/export named && cp named/model.safetensors named/other.safetensors
mkdir begun && touch begun/train.jsonl
# Shards of a vocabulary of their own, as dev/data/prepare leaves them.
mkdir own && cp good.bin own/train_000000.bin
printf '{"format": "train_llama shards 1", "tokenizer": {"file": null, "vocabulary": 300}}' >own/manifest.json
mkdir -p tiny other_vocabulary
printf '{"model": {"type": "BPE"}}' >tiny/tokenizer.json
cp "$root/dev/test/tokenizers/llama3.json" other_vocabulary/tokenizer.json
# Shards beside another tokenizer than the weights': two ids swapped.
mkdir swapped silent
cp good.bin swapped && sed 's/"a": 97\b/"a": 98/; t; s/"b": 98\b/"b": 97/' good/export/tokenizer.json >swapped/tokenizer.json
cp good.bin silent && header silent/good.mask 20241121 1 1000
head -c 1000 /dev/zero >>silent/good.mask # no token is learnt
cp -r good/export nan && python3 - nan/model.safetensors <<'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    begin, end = json.loads(file.read(length))["model.layers.0.mlp.down_proj.weight"]["data_offsets"]
    file.seek(8 + length + end - 12)  # of the fp32 numbers the third last: a row of the last rank's
    file.write(struct.pack("<f", float("nan")))
END
cp -r good/export torn_config && printf '{"bos_token": "<s>",}' >torn_config/tokenizer_config.json
check "a folder that is called as a preset is not the model" "$train" --dry-run
"$train" $short --train-data silent/good.bin --seq-len 16 --global-batch 2 --out silent_run >silent.txt || { cat silent.txt && fail "nothing to learn"; }
check "a step without anything to learn has no loss" grep -q '"loss":null' silent_run/train.jsonl
check "  and says so" grep -q "nothing to learn" silent.txt

for n in 1 2; do
  on=(ranks "$n" "$train" $short)
  echo "-- on $n rank(s)"
  refused "truncated shard" "header says 5000 tokens" "${on[@]}" --train-data truncated.bin
  refused "wrong magic" "20240599" "${on[@]}" --train-data magic.bin
  refused "token beyond the vocabulary, read at the start" "token.bin: token 999 is 300" "${on[@]}" --train-data token.bin --check-data
  refused "  and when its turn comes" "token.bin: token 999 is 300" "${on[@]}" --train-data token.bin --out token_run
  check "  in the first step, which has all tokens, and not before" grep -q "^  memory" refused
  check "  and no run is left of it" [ ! -e token_run ]
  refused "held-out data with such a token" "token.bin: token 999 is 300" "${on[@]}" --val-data token.bin --train-data good.bin --check-data
  "${on[@]}" --train-data good.bin --val-data 'silent/*.bin' --check-data --dry-run >checked.txt
  check "good data is read to its end before a dry run ends" grep -q "checked 2.00k tokens and their masks in 2 files in .*: each is below the vocabulary" checked.txt
  refused "empty text" "empty.txt" "${on[@]}" --train-data empty.txt
  refused "no such data" "nothing" "${on[@]}" --train-data nothing.bin
  refused "missing safetensors" "safetensors" "${on[@]}" --model missing
  refused "truncated safetensors" "model.safetensors" "${on[@]}" --model cut
  refused "wrong shapes" "gate_proj" "${on[@]}" --model shape
  refused "an impossible model" "not a multiple of 3" "${on[@]}" --model heads
  refused "dropout" "attention_dropout is 0.1" "${on[@]}" --model dropout
  refused "a model that attends to a window" "sliding_window is 64" "${on[@]}" --model window.json
  refused "text for weights of another vocabulary" "vocabulary of 300" "${on[@]}" --model large/export
  refused "weights without a config.json" "there is no config.json beside it" "${on[@]}" --model lonely.safetensors
  refused "weights that are not the folder's" "other.safetensors is none of the weights of named" "${on[@]}" --model named/other.safetensors
  refused "a run that has no weights" "neither an export nor a checkpoint" "${on[@]}" --model begun
  refused "shards with more tokens than the model" "\"vocab_size\": 300}" "${on[@]}" --train-data 'own/*.bin'
  refused "held-out shards with more tokens than the weights" "own have a vocabulary of 300 tokens" "${on[@]}" --model good/export --val-data 'own/*.bin'
  refused "a vocabulary for weights" "--vocab-size 300: the weights of good/export have 256 tokens" "${on[@]}" --model good --vocab-size 300
  refused "no such model" "did you mean llama3-8b" "${on[@]}" --model llama3-8
  refused "a tokenizer of another vocabulary" "tokens, the model tiny 256" "${on[@]}" --tokenizer other_vocabulary
  refused "a tokenizer that is none" "tiny/tokenizer.json" "${on[@]}" --tokenizer tiny
 refused "shards of another tokenizer" "token 97 is \"b\" there and \"a\" here" "${on[@]}" --model good/export --train-data 'swapped/*.bin'
  refused "held-out data without anything to learn" "have no token to learn" "${on[@]}" --eval-only --val-data silent/good.bin --seq-len 16
  refused "a tokenizer_config.json that is none" "torn_config/tokenizer_config.json" "${on[@]}" --model torn_config
  refused "unknown option" "--lr" "${on[@]}" --lrr 3
  refused "a number beyond all sense" "--micro-batch 4294967297" "${on[@]}" --micro-batch 4294967297
  refused "a step of too many tokens" "at most 2^31 tokens" "${on[@]}" --global-batch 999999998
  refused "an epsilon that fp32 does not have" "--adam-eps" "${on[@]}" --adam-eps 1e-50
  refused "too little data" "lower --seq-len" "${on[@]}" --train-data good.bin --seq-len 1000
  refused "a value that is no number" "--lr" "${on[@]}" --lr abc
  refused "a batch that cannot be shared" "--global-batch" "${on[@]}" --global-batch 5 --micro-batch 2
  refused "an impossible mesh" "tensor" "${on[@]}" --tensor-parallel-degree 3
  refused "an output that is not empty" "exists and is not an empty directory" "${on[@]}" --out full
  refused "an unwritable output" "/proc/run" "${on[@]}" --out /proc/run
  refused "a sequence longer than the model" "--seq-len" "${on[@]}" --seq-len 100000
  refused "a model that does not fit" "it does not fit" "${on[@]}" --model llama3-405b --train-data good.txt --seq-len 64
  refused "sums narrower than what is added" "sums of fp32 numbers travel in fp32" "${on[@]}" --tensor-parallel-reduce-dtype bf16 --dtype fp32
  refused "FP8 around fp32" "--fp8 rowwise with --dtype fp32: FP8 products have bf16 around them" "${on[@]}" --fp8 rowwise --dtype fp32
  refused "gradients in a format that the recipe has not" "e5m2 goes with --fp8 tensorwise or delayed" "${on[@]}" --fp8 rowwise --fp8-grad e5m2
  refused "FP8 without what is not there" "--fp8-skip: dwon_proj matches no weight" "${on[@]}" --fp8 tensorwise --fp8-skip dwon_proj
  refused "FP8 without any product" "leaves no product in FP8" "${on[@]}" --fp8 blockwise --fp8-skip '*'
  refused "FP8 weights that travel, and are none" "add --fp8 tensorwise or delayed" "${on[@]}" --fp8-all-gather
  for ignored in "fp8-grad e4m3" "fp8-pow2-scales on" "fp8-stats 5" "fp8-history 4" "fp8-amax latest" "fp8-margin 2"; do
    # shellcheck disable=SC2086  # words
    refused "--$ignored without FP8" "--${ignored% *} changes nothing with --fp8 off" "${on[@]}" --$ignored
  done
  refused "a history that the recipe has not" "use --fp8-history 1024, or --fp8 delayed" "${on[@]}" --fp8 tensorwise --fp8-history 4
  refused "a recipe that is none" "--fp8" "${on[@]}" --fp8 tensor
  for fp8 in "tensorwise" "blockwise" "delayed --zero-stage 3 --fp8-all-gather" "tensorwise --zero-stage 2 --fp8-all-gather --fp8-precompute-scales off"; do
    # shellcheck disable=SC2086  # words
    refused "a NaN in the weights, --fp8 $fp8" "the weight of down in block 0 has an infinity or NaN" "${on[@]}" --model nan --seq-len 16 --global-batch 2 --fp8 $fp8 --out nan_run
    check "  leaves nothing" [ ! -e nan_run ]
  done
  export LLMC_CPU_ORDER=sideways
  refused "an unknown environment setting" "LLMC_CPU_ORDER" "${on[@]}"
  unset LLMC_CPU_ORDER
done

# What the system lets a file grow to, as a full disk does.
limited() { (ulimit -f 500 && "$train" --layers 1 $short --seq-len 16 --global-batch 1 --out limited); }
refused "an export that the disk does not take" "limited/export/model.safetensors" limited
check "nothing is left under the export's name" eval '[ ! -e limited/export/model.safetensors ]'
check "no run's folder is left by what was refused" eval '! compgen -G "runs/20*"'

# Models by other names.
takes() { "$train" --dry-run --model "$1" >took.txt && grep -q "weights of good/export: " took.txt; }
check "a run's folder is its export" takes good
check "a file of weights is its folder" takes good/export/model.safetensors
"$train" --dry-run --train-data 'own/*.bin' --seq-len 16 --global-batch 1 >advice.txt 2>&1 || true
grep -o '{"hidden_size.*}' advice.txt >advised.json
check "the model that is advised for shards is one" "$train" --dry-run --train-data 'own/*.bin' --seq-len 16 --global-batch 1 --model advised.json
check "--vocab-size makes a preset one" "$train" $short --layers 1 --train-data 'own/*.bin' --seq-len 16 --global-batch 1 --vocab-size 300 --out own_run
check "  which its export says" grep -q '"vocab_size": 300' own_run/export/config.json
check "--vocab-size drops tokens that are no longer there" eval '"$train" --dry-run --model llama3.2-1b --layers 1 --vocab-size 500 --seq-len 16 --global-batch 1 >fewer.txt && grep -q "vocabulary 500" fewer.txt'

# What somebody has in the folder that a checkpoint is to become.
"$train" --layers 1 $short --seq-len 16 --global-batch 1 --checkpoint-every 1 --out saved >saved.txt 2>&1 || { cat saved.txt && fail "a run with a checkpoint"; }
refused "a run with checkpoints alone" "scripts/consolidate unexported DIR" eval 'cp -r saved unexported && rm -r unexported/export && "$train" --model unexported'
mkdir mine
for file in README.md config.json generation_config.json tokenizer.json; do
  echo mine >mine/$file
  refused "$file of somebody's own" "mine/$file is there already" "$train" --resume saved --consolidate mine
  check "  stays, and nothing comes beside it" [ "$(cat mine/*)" = mine ]
  rm mine/$file
done
check "into an empty folder it goes" eval '"$train" --resume saved --consolidate mine >consolidated.txt && cmp mine/model.safetensors saved/export/model.safetensors'

refused "a recipe that the rehearsed GPU has not" "those that can: --fp8 tensorwise, delayed" \
  "$train" --dry-run --nodes 1 --gpu B200 --model llama3.2-1b --fp8 blockwise

"$train" --check-data --dry-run >checked.txt
check "a text that is cut in two parts is one file" grep -q "checked 1.12M tokens in 1 file in" checked.txt

# A mapped file that shrinks would end the run with a bus error.
head -c 300000 "$root/dev/data/tinyshakespeare.txt" >shrinking.txt
LLMC_THREADS=1 timeout 100 "$train" --layers 1 --seq-len 16 --global-batch 4 --steps 100000 --val-every 0 --sample-every 0 \
  --train-data shrinking.txt --out shrinking >shrinking.out 2>&1 &
pid=$!
wait_for shrinking.out "step  *3/"
truncate -s 1000 shrinking.txt
code=0
wait $pid || code=$?
check "a file that shrinks while it is trained on ends the run by a message ($code)" eval '[ "$code" -gt 0 ] && [ "$code" -lt 124 ]'
check "  with its sizes" grep -q "of shrinking.txt: it had 300000 bytes when it was opened and has 1000 now" shrinking.out

# Runs that start in the same second.
pids=() codes=""
for _ in 1 2 3 4; do
  LLMC_THREADS=1 "$train" --layers 1 $short --seq-len 16 --global-batch 1 >>same_second.txt 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" && codes+=0 || codes+=x; done
check "4 runs that start at once have 4 folders ($codes)" eval '[ "$codes" = 0000 ] && [ "$(ls -d runs/20* | wc -l)" = 4 ] && [ "$(cat runs/20*/train.jsonl | wc -l)" = 4 ]'
echo "$checks checks passed"
