#!/usr/bin/env bash
# Covers: text with a tokenizer: the trainer cuts it into tokens, once for all ranks and later runs, keeps them next to --out
# or in --cache, and trains as on shards of the same tokens; an export of bytes reads bytes; compressed and binary files are refused
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"

head -c 60000 "$root/dev/data/tinyshakespeare.txt" >text.txt
tail -c 20000 "$root/dev/data/tinyshakespeare.txt" >other.txt
mkdir tokenizer && cp "$root/dev/test/tokenizers/llama3.json" tokenizer/tokenizer.json
heads_model | sed 's/"vocab_size": 256/"vocab_size": 1514/' >model.json
few=(--model model.json --steps 3 --seq-len 32 --global-batch 4 --sample-every 0 --val-every 3)
dry=(--model model.json --seq-len 32 --tokenizer tokenizer --dry-run)
cut=("${few[@]}" --tokenizer tokenizer --train-data text.txt)
val_loss() { sed -n 's/.*"val_loss":\([^,}]*\).*/\1/p' "$1/train.jsonl"; }

quick "${cut[@]}" --export off --out first
cache=$(ls -d cache/*)
check "the banner says how the text was cut, and where its tokens are" \
  grep -qE "text.txt: text, cut into [0-9.]+k tokens by tokenizer/tokenizer.json \(cached in $cache\)" log
check "nothing says that bytes are tokens" eval '! grep -q "byte by byte\|the bytes of the text" log'
check "the last tenth is held out" grep -qE "held out: [0-9.]+k tokens, .*: the last tenth" log
tokens=$(sed -n 's/.*"tokens": \([0-9]*\).*/\1/p' "$cache/made_of.json")
shown=$(sed -n 's/^  data  *\([0-9.]*\)k tokens of text.txt.*/\1/p' log)
check "nine tenths of $tokens tokens are trained on: ${shown}k" \
  eval 'awk "BEGIN { exit !($tokens * 0.9 / 1000 - $shown < 0.1 && $shown - $tokens * 0.9 / 1000 < 0.1) }"'

sed 's/"vocab_size": *[0-9]*/"vocab_size": 1000/' model.json >few.json
refused "a model of fewer tokens than the cached text has: the text is named" "text.txt: the text's token" "$train" --tokenizer tokenizer --model few.json --train-data text.txt --cache cache
check "  with as many tokens as it needs" grep -qF -- "--vocab-size 1514, as many as tokenizer/tokenizer.json has" refused
mkdir before && cp "$cache"/* before
quick "${cut[@]}" --export off --out again
check "a second run takes the same tokens, and has the same losses" \
  eval 'diff -r before "$cache" && [ "$(losses first/train.jsonl)" = "$(losses again/train.jsonl)" ] && [ "$(ls cache | wc -l)" = 1 ]'
rm -r cache
ranks 2 "$train" "${cut[@]}" --export off --out two >log 2>&1 || { cat log && fail "two ranks"; }
check "two ranks cut it into the same tokens" diff -r before "$cache"

# --cache names another folder; a run that goes on does not take it over.
quick "${cut[@]}" --export off --checkpoint-every 3 --cache tokens --out named
check "--cache DIR keeps the tokens there" eval 'diff -r before tokens/"$(basename "$cache")" && [ "$(ls cache | wc -l)" = 1 ]'
check "  which no checkpoint asks for" eval '! grep -q "\"cache\"" named/checkpoints/step-00000003/state.json'

# The tokens as shards, with the text's other part as held-out data.
quick "${cut[@]}" --val-data other.txt --out text_run
[ "$(ls cache | wc -l)" = 2 ] || fail "two texts are cut"
other=$(ls -d cache/* | grep -v "$cache")
cp "$cache"/text_000001.bin train.bin && cp "$other"/text_000001.bin val.bin
quick "${few[@]}" --tokenizer tokenizer --train-data train.bin --val-data val.bin --export off --out shards_run
check "text trains and validates as its tokens in shards do" \
  eval '[ -n "$(losses text_run/train.jsonl)" ] && diff <(without_times text_run/train.jsonl) <(without_times shards_run/train.jsonl)'
check "also in bits a byte" grep -q val_bits_per_byte text_run/train.jsonl
refused "one text is one document: --packed-documents would change nothing" "would change nothing" \
  "$train" "${dry[@]}" --train-data text.txt --packed-documents
mkdir texts && cp text.txt other.txt texts
shows "packed documents begin with the token that is put before each text" "each begins with token 1505" "${dry[@]}" --train-data 'texts/*.txt' --packed-documents
check "  so nothing teaches an end, which is told with the way out" \
  grep -A 1 "warning: nothing teaches the model to end a document: token 1505, <|begin_of_text|>, begins each" log
check "    once" [ "$(grep -c "nothing teaches" log)" = 1 ]
check "    the command" grep -qF "dev/data/prepare 'texts/*.txt' --tokenizer tokenizer/tokenizer.json --document-separator '<|begin_of_text|>' --strip --delimiter both --out DIR" log
quick "${dry[@]}" --train-data 'texts/*.txt' --special-tokens parse --packed-documents
check "  and not where texts may spell another token at their end" not grep -q "nothing teaches" log
quick "${dry[@]}" --train-data 'texts/*.txt'
check "  nor where rows are not packed" not grep -q "nothing teaches" log
sed '100s/^/<|begin_of_text|>/' text.txt >marked.txt
refused "a text that spells that token is one document" "token 1505, which should begin each document, is the first and no other of" \
  "$train" --model model.json --seq-len 32 --tokenizer tokenizer --train-data marked.txt --val-data texts/other.txt --packed-documents --dry-run
check "  unless it is parsed, which is said" grep -A 1 "marked.txt spells 1 special token, first <|begin_of_text|>, cut into letters" refused
check "    with the option" grep -q "for the tokens themselves: --special-tokens parse" refused

echo "-- special tokens that a text spells"
sed '100s/^/<|end_of_text|>/;200s/^/<|end_of_text|>/' text.txt >spelled.txt
spelled=("${few[@]}" --tokenizer tokenizer --train-data spelled.txt --export off)
for n in first second; do
  quick "${spelled[@]}" --dry-run
  check "they are letters, which is told: the $n time" grep -qF "spelled.txt spells 2 special tokens, first <|end_of_text|>, cut into letters like the rest" log
done
shows "--special-tokens parse makes them tokens" "of which 2 special tokens that it spells" "${spelled[@]}" --special-tokens parse --checkpoint-every 1 --out parsed
check "  and warns of nothing" not grep -q "like the rest" log
check "  so the text's documents are packed" "$train" "${dry[@]}" --train-data spelled.txt --special-tokens parse --packed-documents --document-token 1506 >log 2>&1
check "    which nothing teaches to end" grep -q "nothing teaches the model to end a document: token 1506, <|end_of_text|>, begins each" log
quick --resume parsed/checkpoints/step-00000001 --export off --out parsed_on
check "a run that goes on cuts the text as before" [ "$(losses parsed/train.jsonl | tail -n 1)" = "$(losses parsed_on/train.jsonl | tail -n 1)" ]
refused "it cannot cut it otherwise" '--special-tokens text (was parse)' "$train" --resume parsed/checkpoints/step-00000001 --special-tokens text
shows "where bytes are tokens it changes nothing, which is a warning" "^warning: --special-tokens parse changes nothing: no text is cut" --train-data text.txt --special-tokens parse --dry-run
shows "  nor of shards, with the way out" "^warning: --special-tokens parse changes nothing" "${dry[@]}" --train-data train.bin --special-tokens parse
check "    which prepare has" grep -q "dev/data/prepare --special-tokens parse" log

echo "-- folders"
mkdir -p shards none/deeper && cp train.bin shards/talks_train_000001.bin && cp val.bin shards/talks_val_000001.bin
quick "${few[@]}" --tokenizer tokenizer --train-data shards --export off --out of_folder
check "a folder's shards are trained on, and those of its split val are held out" \
  diff <(without_times shards_run/train.jsonl) <(without_times of_folder/train.jsonl)
shows "else its texts" "texts/\*.txt: text, cut into" "${dry[@]}" --train-data texts/
for names in talks_training_1.bin:talks_Val_1.bin mine_train.bin:mine_val.bin a.bin:validation2.bin a.txt:val.txt "a, b.txt:test-00.txt"; do
  rm -rf others && mkdir others
  case $names in *.bin) cp train.bin others/a && cp val.bin others/b ;; *) cp text.txt others/a && cp other.txt others/b ;; esac
  mv others/a "others/${names%:*}" && mv others/b "others/${names#*:}"
  quick "${dry[@]}" --train-data others
  check "a folder with ${names/:/ and }: one is trained on" grep -qE "^  data .* tokens of others/${names%:*}|^  data .* tokens of others/a\\\\, b.txt" log
  check "  the other one is held out, which is told" grep -qF "others/${names#*:} is not trained on, but held out: its name says that it is for validation" log
done
shows "with --val-data it is only left out" "others/test-00\.txt is not trained on: its name says that it is for validation" "${dry[@]}" --train-data others --val-data other.txt
shows "a pattern is taken as it is, with one warning" "warning: --train-data also trains on others/test-00\.txt, and its name says that it is for validation" "${dry[@]}" --train-data 'others/*.txt'
quick "${dry[@]}" --train-data 'others/*.txt' --val-data others
check "  also if it is held out, too" eval '[ "$(grep -c "^warning.*test-00.txt" log)" = 1 ]'
quick "${dry[@]}" --train-data 'others/t*.txt'
check "  and without one if nothing else was named" not grep -q "for validation" log
mv others/test-00.txt others/contest.txt
quick "${dry[@]}" --train-data others
check "a word is a whole one" not grep -q "for validation" log
refused "else it is told what is trained on" "the folder has neither shards (*.bin) nor texts (*.txt)" "$train" --train-data none --dry-run
refused "a data set of the hub" "dev/data/prepare roneneldan/TinyStories" "$train" --train-data roneneldan/TinyStories
refused "a model of the hub" "hf download Qwen/Qwen2.5-0.5B --local-dir Qwen2.5-0.5B, then --model Qwen2.5-0.5B" "$train" --model Qwen/Qwen2.5-0.5B
refused "a tokenizer of the hub" "hf download openai-community/gpt2 --local-dir gpt2 --include" "$train" --tokenizer openai-community/gpt2 --dry-run

# Weights and a tokenizer in one folder: one command.
shows "an export goes on from text" "cut into .* tokens by text_run/export/tokenizer.json" --model text_run/export --train-data text.txt --steps 2 --seq-len 32 --sample-every 0 --export off --out tuned
shows "and is measured with text" "held-out loss .* bits a byte" --model text_run/export --eval-only --val-data other.txt --seq-len 32

# Without a tokenizer bytes are tokens, as before.
rm -r cache
quick "${few[@]}" --train-data text.txt --dry-run
check "without a tokenizer the banner warns that bytes are tokens" \
  grep -q "warning: the bytes of the text are the tokens, and the model has 1514: name its tokenizer" log
byte=(--train-data text.txt --steps 2 --seq-len 32 --global-batch 4 --sample-every 0)
quick "${byte[@]}" --layers 1 --out bytes
shows "an export of bytes reads bytes, of which the last tenth is held out" "54.0k tokens of text.txt, byte by byte" --model bytes/export "${byte[@]}" --export off --out bytes_on
check "and goes on where it was: $(val_loss bytes | tail -1)" [ "$(val_loss bytes | tail -1)" = "$(val_loss bytes_on | head -1)" ]
check "bytes need no cache" eval '[ ! -e cache ]'
rm bytes/export/tokenizer.json && sed 's/"vocab_size": 256/"vocab_size": 300/' bytes/export/config.json >300.json
quick --model 300.json --train-data text.txt --steps 1 --seq-len 32 --global-batch 1 --sample-every 0 --val-every 0 --out v300

gzip -k text.txt && mv text.txt.gz packed.txt
head -c 5000 /dev/zero >zeros.txt
printf '{"text": "a line"}\n%.0s' {1..100} >lines.jsonl
iconv -f utf-8 -t utf-16 text.txt >utf16.txt
printf 'x' >blocked
for n in 1 2; do
  with=(ranks "$n" "$train" "${few[@]}" --tokenizer tokenizer) without=(ranks "$n" "$train" --steps 1)
  echo "-- on $n rank(s)"
  for kind in with without; do
    declare -n on=$kind
    refused "a compressed text, $kind a tokenizer" "packed.txt is compressed with gzip" "${on[@]}" --train-data packed.txt
    refused "JSON lines, $kind a tokenizer" "lines.jsonl holds JSON lines" "${on[@]}" --train-data lines.jsonl
    refused "a binary one, $kind a tokenizer" "zeros.txt is binary: byte 0 is 0" "${on[@]}" --train-data zeros.txt
    refused "UTF-16 to measure with, $kind a tokenizer" "utf16.txt is UTF-16" "${on[@]}" --train-data text.txt --val-data utf16.txt
  done
  refused "weights of many tokens without a tokenizer" "vocabulary of 300 and no tokenizer" ranks "$n" "$train" --model v300/export --train-data text.txt
  mv runs kept 2>/dev/null || true
  cp blocked runs
  refused "tokens that cannot be kept" "cannot create runs/cache" "${with[@]}" --train-data text.txt
  check "  is said once" [ "$(grep -c "cannot create runs/cache" refused)" = 1 ]
  check "  nor need it be: --out in a folder that can be written" ranks "$n" "$train" "${few[@]}" --tokenizer tokenizer --train-data text.txt --dry-run --out "away$n/run" >log 2>&1
  check "    has the tokens next to it" [ -e "away$n/cache" ]
  rm runs
  rm -rf kept
done
echo "$checks checks passed"
