#!/usr/bin/env bash
# Covers: bad input: each a clear message and an exit code other than 0, on one rank and on two
# Timeout: 300
#
# Each case runs on one rank, some that the commit chooses on two: make test-options has all of them on two.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
export LLMC_THREADS=1
short=(--steps 1 --val-every 0 --sample-every 0)
small=(--layers 1 "${short[@]}" --seq-len 16 --global-batch 1)
trains() { exits 0 "$train" "$@"; }

# Shards of llm.c's format, sound and not.
python3 - <<'END'
import pathlib, struct
def shard(path, data=bytes(2000), magic=20240520, tokens=1000):
    pathlib.Path(path).parent.mkdir(exist_ok=True)
    pathlib.Path(path).write_bytes(struct.pack("<256i", magic, 1, tokens, *[0] * 253) + data)
shard("good.bin")
shard("truncated.bin", bytes(4000), tokens=5000)
shard("magic.bin", magic=20240599)
shard("token.bin", bytes(1998) + b"\x2c\x01")  # the last token is 300
shard("own/train_000000.bin", b"\x2b\x01" + bytes(1998))  # the first token is 299
shard("unused/train_000000.bin")
shard("swapped/good.bin")
shard("silent/good.bin")
shard("silent/good.mask", bytes(1000), magic=20241121)  # no token is learnt
for name, magic in ("weights", 20240326), ("tokenizer", 20240328), ("questions", 20240522):
    shard(f"llmc_{name}.bin", magic=magic)
shard("quiet/good.bin")
shard("quiet/good.mask", bytes(999) + b"\1", magic=20241121)  # one is
END
: >empty.txt
head -c 300000 "$root/dev/data/tinyshakespeare.txt" >text.txt

# Models, sound and not.
check "a good run" trains "${small[@]}" --out good
of_good() { cp -r good/export "$1" && (cd "$1" && eval "$2"); } # NAME CHANGE
of_good cut 'truncate -s 100000 model.safetensors'
of_good missing 'rm model.safetensors'
of_good shape 'sed -i "s/\"intermediate_size\": 384/\"intermediate_size\": 385/" config.json'
of_good heads 'sed -i "s/\"num_key_value_heads\": 2/\"num_key_value_heads\": 3/" config.json'
of_good dropout 'sed -i "s/\"attention_bias\": false/\"attention_dropout\": 0.1, &/" config.json'
of_good window 'sed -i "s/\"attention_bias\": false/\"sliding_window\": 64, &/" config.json'
of_good named 'cp model.safetensors other.safetensors'
of_good precompiled 'sed -i "s/\"normalizer\": *null/\"normalizer\": {\"type\": \"Precompiled\"}/" tokenizer.json && grep -q Precompiled tokenizer.json'
of_good torn_config 'echo "{\"bos_token\": \"<s>\",}" >tokenizer_config.json'
of_good nan : && python3 - nan/model.safetensors <<'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    begin, end = json.loads(file.read(length))["model.layers.0.mlp.down_proj.weight"]["data_offsets"]
    file.seek(8 + length + end - 12)  # of the fp32 numbers the third last: a row of the last rank's
    file.write(struct.pack("<f", float("nan")))
END
of_good escapes : && python3 - escapes/model.safetensors <<'END'
import json, struct, sys
with open(sys.argv[1], "r+b") as file:
    (length,) = struct.unpack("<Q", file.read(8))
    header, data = json.loads(file.read(length)), file.read()
    header["\x1b]0;title\x07\x1b[2J"] = {"dtype": "F32", "shape": [1], "data_offsets": [len(data), len(data) + 4]}
    text = json.dumps(header).encode()
    file.seek(0)
    file.write(struct.pack("<Q", len(text)) + text + data + bytes(4))
END
echo '{"private": "key"}' >key.json
for file in chat_template.jinja tokenizer.json tokenizer_config.json generation_config.json; do
  of_good "link_$file" "ln -sf ../key.json $file"
done
cp good/export/model.safetensors lonely.safetensors
sed 's/"vocab_size": 256/"vocab_size": 300/' good/export/config.json >large.json
check "a model of 300 tokens" trains --model large.json "${small[@]:2}" --train-data good.bin --out large
mkdir -p full begun tiny other_vocabulary deep/er held
cp text.txt held/val.txt
touch full/something begun/train.jsonl
printf '{"model": {"type": "BPE"}}' >tiny/tokenizer.json
cp "$root/dev/test/tokenizers/llama3.json" other_vocabulary/tokenizer.json
# Shards of a vocabulary of their own, as dev/data/prepare leaves them, and of a tokenizer with two ids swapped.
printf '{"format": "train_llama shards 1", "tokenizer": {"file": null, "vocabulary": 300}}' >own/manifest.json
sed 's/null/"tokenizer.json"/' own/manifest.json >unused/manifest.json
sed 's/"a": 97\b/"a": 98/; t; s/"b": 98\b/"b": 97/' good/export/tokenizer.json >swapped/tokenizer.json
check "a folder that is called as a preset is not the model" trains --dry-run

# what | what is said | options
cat >cases <<'END'
truncated shard|header says 5000 tokens|--train-data truncated.bin
wrong magic|20240599|--train-data magic.bin
token beyond the vocabulary, read at the start|token.bin: token 999 is 300|--train-data token.bin --check-data
held-out data with such a token|token.bin: token 999 is 300|--val-data token.bin --train-data good.bin --check-data
empty text|empty.txt|--train-data empty.txt
no such data|nothing|--train-data nothing.bin
missing safetensors|safetensors|--model missing
truncated safetensors|model.safetensors|--model cut
wrong shapes|gate_proj|--model shape
an impossible model|not a multiple of 3|--model heads
dropout|attention_dropout is 0.1|--model dropout
a model that attends to a window|sliding_window is 64|--model window/config.json
text for weights of another vocabulary|vocabulary of 300|--model large/export
weights without a config.json|its folder has no config.json|--model lonely.safetensors
weights that are not the folder's|other.safetensors is none of the weights of named|--model named/other.safetensors
a run that has no weights|neither an export nor a checkpoint|--model begun
shards with more tokens than the model|token 0 is 299|--train-data own/*.bin --vocab-size 256
  whose manifest says how many|with random weights --vocab-size 300, as many as own/manifest.json has|--train-data own/*.bin --vocab-size 256
held-out shards with more tokens than the weights|own/train_000000.bin: token 0 is 299|--model good/export --val-data own/*.bin
a vocabulary for weights|--vocab-size 300: the weights of good/export have 256 tokens|--model good --vocab-size 300
no such model|did you mean llama3-8b|--model llama3-8
a tokenizer of another vocabulary|vocabulary of 256: with random weights --vocab-size 1514, as many as other_vocabulary/tokenizer.json has|--tokenizer other_vocabulary --vocab-size 256
  whose first token is not the text's|the document's first token|--tokenizer other_vocabulary --vocab-size 256
llm.c's shards for a model of bytes|with random weights --vocab-size 50304, as many as a model of GPT-2's tokens has|--train-data token.bin --check-data
a tokenizer that is not there|hf download openai-community/gpt2 --local-dir gpt2 --include '*.json', then --tokenizer gpt2|--tokenizer GPT2
  and is no name of the hub|hf download OWNER/NAME --local-dir NAME|--tokenizer nothing
  a folder that has none|--tokenizer full: there is no full/tokenizer.json|--tokenizer full
a tokenizer's folder as the model|for its tokenizer: --tokenizer other_vocabulary|--model other_vocabulary
llm.c's weights as the model|this is llm.c's weights of GPT-2|--model llmc_weights.bin
llm.c's tokenizer|this is llm.c's tokenizer of GPT-2|--tokenizer llmc_tokenizer.bin
llm.c's questions|this is llm.c's questions|--eval-choices llmc_questions.bin
llm.c's questions as data|this is llm.c's questions|--train-data llmc_questions.bin
a shard as the model|this is a shard of tokens|--model good.bin
several texts in a list|several files are one pattern: '{text.txt,good.bin}'|--train-data text.txt,good.bin
a name that only dev/data knows|dev/data/prepare tinystories --tokenizer MODEL --out data/NAME|--train-data tinystories
a folder that has only folders|as 'deep/*/*.txt'|--train-data deep
a folder that has only validation files|by their names all its files are for validation, as held/val.txt|--train-data held
a run that saved no checkpoint|there is no complete checkpoint|--resume good
  and one that is not there|there is no such folder|--resume nowhere
a prompt with a token that the model lacks|as many as other_vocabulary/tokenizer.json has; with loaded weights data of their own tokenizer|--tokenizer other_vocabulary --model good/export --sample-only --prompt x
a tokenizer that is not supported, found, and a prompt|"normalizer" has the type "Precompiled"|--model precompiled --sample-only --prompt x
a tokenizer that is not supported, found, and questions|"normalizer" has the type "Precompiled"|--model precompiled --eval-choices questions.jsonl
a tokenizer that is not supported, found, and a text|"normalizer" has the type "Precompiled"|--model precompiled --train-data text.txt
a tokenizer that is not supported, asked for|"normalizer" has the type "Precompiled"|--tokenizer precompiled --train-data good.bin
a tokenizer that is none|tiny/tokenizer.json|--tokenizer tiny
shards of another tokenizer|token 97 is "b" there and "a" here|--model good/export --train-data swapped/*.bin
training data without anything to learn|training tokens have no token to learn: their masks are 0|--train-data silent/good.bin --seq-len 16
documents that are nothing but their first token|no token to learn: all of them tell documents apart|--train-data good.bin --seq-len 16 --packed-documents --document-token 0
held-out data without anything to learn|have no token to learn|--eval-only --val-data silent/good.bin --seq-len 16
a tokenizer_config.json that is none|torn_config/tokenizer_config.json|--model torn_config
a link to a file elsewhere|chat_template.jinja is a link to|--model link_chat_template.jinja
a link for a tokenizer_config.json|tokenizer_config.json is a link to|--model link_tokenizer_config.json
a link for a generation_config.json|generation_config.json is a link to|--model link_generation_config.json
unknown option|did you mean --lr?|--lrr 3
a pattern without quotes|'books/*.txt'|--train-data text.txt good.bin
a vocabulary beyond every model|expected at most 1048576 for hidden, FFN and all heads together, 10000 layers, 16777216 tokens|--vocab-size 1000000000
layers beyond every model|20000 layers|--layers 20000
a number beyond all sense|--micro-batch 4294967297|--micro-batch 4294967297
a step of too many tokens|at most 2^31 tokens|--global-batch 999999998
an epsilon that fp32 does not have|--adam-eps|--adam-eps 1e-50
too little data|lower --seq-len|--train-data good.bin --seq-len 1000
a value that is no number|--lr abc: not a number|--lr abc
a batch that cannot be shared|--global-batch|--global-batch 5 --micro-batch 2
an impossible mesh|tensor|--tensor-parallel-degree 3
an output that is not empty|exists and is not an empty directory|--out full
an unwritable output|/proc/run|--out /proc/run
a sequence longer than the model|--seq-len|--seq-len 100000
a model that does not fit|it does not fit|--model llama3.1-405b --train-data text.txt --seq-len 64
sums narrower than what is added|sums of fp32 numbers travel in fp32|--tensor-parallel-reduce-dtype bf16 --dtype fp32
FP8 around fp32|--fp8 rowwise with --dtype fp32: FP8 products have bf16 around them|--fp8 rowwise --dtype fp32
gradients in a format that the recipe has not|e5m2 goes with --fp8 tensorwise or delayed|--fp8 rowwise --fp8-grad e5m2
FP8 without what is not there|--fp8-skip: dwon_proj matches no weight|--fp8 tensorwise --fp8-skip dwon_proj
FP8 without any product|leaves no product in FP8|--fp8 blockwise --fp8-skip *
FP8 weights that are to be gathered, and are none|add --fp8 tensorwise or delayed|--fp8-all-gather
a format without FP8|--fp8-grad changes nothing with --fp8 off|--fp8-grad e4m3
powers of two without FP8|--fp8-pow2-scales changes nothing with --fp8 off|--fp8-pow2-scales on
a head in FP8 without FP8|--fp8-head changes nothing with --fp8 off|--fp8-head on
a z-loss beyond the scale of FP8|use 0.01 or less, or --fp8-head off|--fp8 tensorwise --fp8-head backward --z-loss 0.02
statistics without FP8|--fp8-stats changes nothing with --fp8 off|--fp8-stats 5
a history without FP8|--fp8-history changes nothing with --fp8 off|--fp8-history 4
largest numbers without FP8|--fp8-amax changes nothing with --fp8 off|--fp8-amax latest
a margin without FP8|--fp8-margin changes nothing with --fp8 off|--fp8-margin 2
a history that the recipe has not|use --fp8-history 1024, or --fp8 delayed|--fp8 tensorwise --fp8-history 4
a recipe that is none|--fp8 tensor: unknown|--fp8 tensor
END
refusals() { # RANKS: of the cases on standard input
  local what text arguments words
  while IFS='|' read -r what text arguments; do
    read -ra words <<<"$arguments"
    refused "$1: $what" "$text" ranks "$1" "$train" "${short[@]}" "${words[@]}" </dev/null
  done
}
refusals 1 <cases
refused "a name with a terminal's escape sequences" "the model has no place for tensor" "$train" "${short[@]}" --model escapes
check "  which do not reach the terminal" not grep -q $'\x1b' "$scratch/refused"
head -c 19 text.txt >short.txt
refused "1: a text whose last tenth is too short" "1 token, too few for a label" "$train" --steps 1 --train-data short.txt --seq-len 4
refusals 2 < <(some_of "$([ "${OPTIONS:-}" = every ] || echo 12)" <cases)

for n in 1 2; do
  echo "-- what is found later, and what is read by all, on $n rank(s)"
  on=(ranks "$n" "$train" "${short[@]}")
  refused "a token beyond the vocabulary when its turn comes" "token.bin: token 999 is 300" "${on[@]}" --train-data token.bin --global-batch 8 --out token_run
  check "  in the first step, which has all tokens, and not before" grep -q "^  memory" refused
  for fp8 in tensorwise blockwise "delayed --zero-stage 3 --fp8-all-gather" "tensorwise --zero-stage 2 --fp8-all-gather --fp8-precompute-scales off"; do
    # shellcheck disable=SC2086  # words
    refused "a NaN in the weights, --fp8 $fp8" "the weights held one before the step: model.layers.0.mlp.down_proj.weight" \
      "${on[@]}" --model nan --seq-len 16 --global-batch 2 --fp8 $fp8 --out nan_run
  done
  check "neither leaves a run" [ ! -e token_run ] && check "  nor this" [ ! -e nan_run ]
  check "good data is read to its end before a dry run ends" exits 0 "${on[@]}" --train-data good.bin --val-data 'silent/*.bin' --check-data --dry-run
  check "  and counted" grep -q "checked 2.00k tokens and their masks in 2 files in .*: each is below the vocabulary" out.txt
  LLMC_CPU_ORDER=sideways refused "an unknown environment setting" "LLMC_CPU_ORDER" "${on[@]}"
done
check "a step without anything to learn" trains --layers 1 --val-every 0 --sample-every 0 --seq-len 16 --global-batch 16 --epochs 1 --train-data quiet/good.bin --out silent_run
check "  says so" said "nothing to learn"
check "  and has no loss" grep -q '"loss":null' silent_run/train.jsonl

# The system limits how large a file grows, as a full disk does.
limited() { (ulimit -f 500 && "$train" "${small[@]}" --out limited); }
refused "an export that the disk does not take" "limited/export/model.safetensors" limited
check "  nothing is left under its name" [ ! -e limited/export/model.safetensors ]
check "no run's folder is left by what was refused" not compgen -G "runs/20*"

echo "-- links in a model's folder"
mkdir -p hub/models--me--good/blobs hub/models--me--good/snapshots/main
cp good/export/* hub/models--me--good/blobs && echo "{{ messages }}" >hub/models--me--good/blobs/chat_template.jinja
(cd hub/models--me--good/snapshots/main && ln -s ../../blobs/* .)
check "a snapshot of Hugging Face's cache" trains "${small[@]}" --model hub/models--me--good/snapshots/main --out of_hub
check "  has its template in the export" cmp hub/models--me--good/blobs/chat_template.jinja of_hub/export/chat_template.jinja
of_good empty ": >merges.txt"
check "an empty file next to the tokenizer is copied as any" trains "${small[@]}" --model empty --out of_empty
check "what is a link elsewhere is read where nothing is written" trains --sample-only --sample-tokens 4 --model link_chat_template.jinja

echo "-- models by other names"
for name in good good/export/model.safetensors; do
  check "--model $name" trains --dry-run --model $name
  check "  is the export" said "weights of good/export: "
done
check "a run that saves a checkpoint" trains "${small[@]}" --checkpoint-every 1 --export off --out runs/saved
refused "--resume of another run names it" "name a run that has some, or one of these: runs/saved/checkpoints/step-00000001" "$train" --resume good
own=(--train-data 'own/*.bin' --seq-len 16 --global-batch 1)
check "a preset of bytes has the vocabulary of the shards' manifest" trains "${short[@]}" --layers 1 "${own[@]}" --out own_run
check "  as the banner says" said "random weights (normal), 1 of 4 layers, 300 tokens as own/manifest.json has"
check "  and its export" grep -q '"vocab_size": 300' own_run/export/config.json
check "  or the tokenizer's" trains --dry-run --tokenizer other_vocabulary
check "  as the banner says" said "1514 tokens as other_vocabulary/tokenizer.json has"
check "  a published model keeps its own" trains --dry-run --model smollm2-135m --layers 1 --tokenizer other_vocabulary --train-data good.bin --seq-len 16
check "  as the banner says" said "vocabulary 49152"
check "shards whose vocabulary is larger train if they use no such token" trains "${small[@]}" --train-data 'unused/*.bin' --vocab-size 256 --out unused_run
check "  also weights" trains "${short[@]}" --model good/export "${own[@]:2}" --train-data 'unused/*.bin' --out unused_weights
check "  and a tokenizer with more tokens is no hindrance" trains "${small[@]}" --train-data good.bin --tokenizer other_vocabulary --vocab-size 256 --out other_run
check "  the banner says so" said "1514 tokens, of which the model has 256"
check "--vocab-size drops tokens that are no longer there" trains --dry-run --model llama3.2-1b --vocab-size 500 "${small[@]}"
check "  as the banner says" said "vocabulary 500"

echo "-- what somebody has in the folder that a checkpoint is to become"
check "a run with a checkpoint" trains "${small[@]}" --checkpoint-every 1 --out saved
mkdir mine unexported && cp -r saved/checkpoints saved/*.json* unexported
refused "a run with checkpoints alone" "scripts/consolidate unexported DIR" "$train" --model unexported
for file in README.md config.json generation_config.json tokenizer.json; do
  echo mine >mine/$file
  refused "$file of somebody's own" "mine/$file is there already" "$train" --resume saved --consolidate mine
  check "  stays, and no other file comes" [ "$(cat mine/*)" = mine ]
  rm mine/$file
done
check "into an empty folder it goes" trains --resume saved --consolidate mine
check "  with the export's bits" cmp mine/model.safetensors saved/export/model.safetensors

refused "a recipe that the rehearsed GPU has not" "those that can: --fp8 tensorwise, delayed" \
  "$train" --dry-run --nodes 1 --gpu B200 --model llama3.2-1b --fp8 blockwise
check "a text that is cut in two parts" trains --check-data --dry-run
check "  is one file" said "checked 1.12M tokens in 1 file in"

# A mapped file that shrinks would end the run with a bus error.
begin shrinking "step  *3/" "$train" --layers 1 --seq-len 16 --global-batch 4 --steps 100000 --val-every 0 --sample-every 0 \
  --train-data text.txt --out shrinking
truncate -s 1000 text.txt
check "a file that shrinks while it is trained on ends the run" ends 60
check "  with an error ($code)" [ "$code" = 64 ]
check "  that has its sizes" says shrinking "of text.txt: it had 300000 bytes when it was opened and has 1000 now"

pids=() codes=""
for _ in 1 2 3 4; do
  "$train" "${small[@]}" >>same_second.txt 2>&1 &
  pids+=($!)
done
for pid in "${pids[@]}"; do wait "$pid" && codes+=0 || codes+=x; done
check "4 runs that start at once end well" [ "$codes" = 0000 ]
check "  and have 4 folders" [ "$(cat runs/20*/train.jsonl | wc -l) $(compgen -G "runs/20*" | wc -l)" = "4 4" ]
echo "$checks checks passed"
