#!/usr/bin/env bash
# Covers: evaluation: held-out loss, bits a byte and multiple choice are the same numbers on 1, 2 and 4 ranks and for any
# micro-batch; bits a byte are of the text alone, and the unigram's labels those that are measured; --eval-only measures
# what the run measured at its end, or all held-out tokens, with progress; how many are measured, and files that are trained
# on as well, are told; data and questions that are none are refused
# Timeout: 300
# Turn: 3
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
head -n 10 dev/test/choices/items.jsonl >"$scratch/items.jsonl"
items=$scratch/items.jsonl
run run 1 --steps 12 --seq-len 160 --global-batch 4 --val-every 12 --val-tokens 2560 --sample-every 0 --eval-choices "$items"
grep '"val_loss"' "$scratch/run/train.jsonl" | tail -n 1 >"$scratch/end.json"
check "the log has the loss, bits a byte and three accuracies" grep -q \
  '"val_loss":[0-9.]*,"val_bits_per_byte":[0-9.]*,"choices_acc":[0-9.]*,"choices_acc_norm":[0-9.]*,"choices_acc_norm_tokens":' "$scratch/end.json"

# measure NAME RANKS OPTIONS…: the figures of --eval-only, of as many tokens as the run's, in $scratch/NAME.
measure() {
  resume measured "$2" none --model "$scratch/run/export" --eval-only --seq-len 160 --val-tokens 2560 --eval-choices "$items" "${@:3}"
  grep -aE 'held-out loss|choices \|' "$scratch/measured.txt" | grep -v -e '--' >"$scratch/$1"
}
measure one 1
check "--eval-only measures" grep -q "10 choices | acc 0\.[0-9]* | acc_norm 0\.[0-9]* | acc_norm_tokens 0\." "$scratch/one"
loss=$(sed -n 's/.*"val_loss":\([0-9.]*\).*/\1/p' "$scratch/end.json")
check "  and says what a guess gets right" grep -q "| acc_norm_tokens 0\.[0-9]* | chance 0\.2500$" "$scratch/one"
check "  and how long its sequences are" says measured "in sequences of 160 tokens"
check "  what the run measured at its end" \
  same_figures <(printf 'held-out loss %.4f\n' "$loss") <(grep -o 'held-out loss [0-9.]*' "$scratch/one")
for words in 2 4 "4 --tensor-parallel-degree 2 --context-parallel-degree 2" "1 --micro-batch 3"; do
  # shellcheck disable=SC2086  # words
  measure more $words
  check "the same on other ranks or micro-batches: $words" same_figures "$scratch/one" "$scratch/more"
done
measure more 1 --eval-format llm.c
{ cat "$items" && for _ in 1 2 3 4 5 6 7 8 9 10; do echo '{"ctx": "a", "endings": ["b", "c"], "label": 1}'; done; } >"$scratch/mixed.jsonl"
tells "a guess among 4 and among 2" "20 choices | acc " resume mixed 2 none --model "$scratch/run/export" --eval-only --seq-len 160 --val-tokens 160 --eval-choices "$scratch/mixed.jsonl"
check "  gets their mean right" says mixed " | chance 0.3750"
check "llm.c's way to build the text" grep -q "10 choices | acc 0" "$scratch/more"
# A mark of WikiHow's makes an ending unlikely, for the one who leaves it there.
printf '{"activity_label": "x", "ctx_a": "y", "ctx_b": "", "ctx": "y", "endings": ["[%090d] z", "and so it goes on"], "label": 0}\n' 0 >"$scratch/marked.jsonl"
marked() { "$train" --model "$scratch/run/export" --eval-only --seq-len 160 --eval-choices "$scratch/marked.jsonl" --eval-format "$1" | tail -n 1; }
check "  with the marks that lm-eval's leaves out" eval '[[ $(marked lm-eval) == *"acc 1.0000 "* && $(marked llm.c) == *"acc 0.0000 "* ]]'

# --val-tokens: the windows are spread over the held-out text, so each number of them has a loss of its own.
head -c 6400 dev/data/tinyshakespeare.txt >"$scratch/short.txt"
head -c 30000 dev/data/tinyshakespeare.txt >"$scratch/held.txt"
# val_tokens RANKS OPTIONS…: --eval-only of a text of 6400 bytes.
val_tokens() {
  resume all "$1" none --model "$scratch/run/export" --eval-only --seq-len 16 --micro-batch 8 --val-data "$scratch/short.txt" "${@:2}"
}
all_says() { grep -qE -- "$1" "$scratch/all.txt" || { cat "$scratch/all.txt" && return 1; }; }
loss_of() { grep -o 'held-out loss [0-9.]* nats a token | [0-9.]* bits a byte' "$scratch/all.txt"; }
val_tokens 1
all=$(loss_of)
check "--eval-only measures all held-out tokens" all_says "held out: 6\.40k tokens, all of which are measured"
check "  with progress" all_says "^measured [1-9][0-9]% of 6\.[34][0-9]k held-out tokens \| eta "
val_tokens 2
check "  the same on 2 ranks ($all)" same_figures <(echo "$all") <(loss_of)
val_tokens 1 --val-tokens 0
check "  and with --val-tokens 0" [ "$(loss_of)" = "$all" ]
val_tokens 1 --val-tokens 1000
check "--val-tokens 1000: as many whole sequences" all_says "of which 992 are measured \(--val-tokens\)"
check "  have another loss" [ "$(loss_of)" != "$all" ]
val_tokens 1 --val-tokens 1
check "--val-tokens 1: one sequence" all_says "of which 16 are measured"
train_on() { resume all 1 none --dry-run --seq-len 16 --val-data "$scratch/held.txt" "$@"; }
train_on --train-data "$scratch/held.txt" --steps 20
check "a run of 5120 tokens measures a tenth of them" all_says "held out: 30\.0k tokens, of which 512 are measured \(--val-tokens\)"
train_on --train-data "$scratch/held.txt" --steps 20 --val-tokens 4096
check "  or as many as it is asked for" all_says "of which 4\.10k are measured"
train_on --train-data "$scratch/held.txt" --steps 640
check "a longer one measures 16384 tokens" all_says "held out: 30\.0k tokens, of which 16\.4k are measured \(--val-tokens\)"
check "  and says that they are trained on" all_says "^warning: 1 of the 1 held-out files, $scratch/held.txt, is also trained on"
ln -s held.txt "$scratch/link.txt"
train_on --train-data "$scratch/link.txt"
check "  also by another name" all_says "is also trained on"
train_on --val-every 0
check "without validation none is measured" all_says "held out: 30\.0k tokens, none of which are measured"
check "  and other files are not trained on" says_not all "trained on"

# Bits a byte: of the text alone. 60 documents of 4 bytes, as files, as shards of bytes with 255 before each, and as shards with
# another token after each, which the manifest names.
mkdir "$scratch/documents" "$scratch/delimited"
for i in $(seq 10 69); do printf 'ab%d' "$i" >"$scratch/documents/$i.txt"; done
python3 - "$scratch" <<'END'
import json, struct, sys
def shard(path, tokens):
    open(path, "wb").write(struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0") + struct.pack(f"<{len(tokens)}H", *tokens))
texts = [b"ab%d" % i for i in range(10, 70)]
shard(sys.argv[1] + "/bytes.bin", [token for text in texts for token in (255, *text)])
shard(sys.argv[1] + "/delimited/x.bin", [token for text in texts for token in (*text, 7)])
manifest = {"format": "train_llama shards 1", "delimiter": {"place": "after", "token": "bell", "id": 7}, "shards": []}
json.dump(manifest, open(sys.argv[1] + "/delimited/manifest.json", "w"))
END
heads_model | sed 's/"vocab_size": 256/"vocab_size": 2300/' >"$scratch/sentencepiece.json"
# bits LABELS BYTES: those that the losses of so many labels make of so many bytes of text are what was printed.
bits() {
  sed -n 's/.*held-out loss \([0-9.]*\) nats a token | \([0-9.]*\) bits a byte.*/\1 \2/p' "$scratch/all.txt" |
    awk -v labels="$1" -v bytes="$2" '{ d = $1 * labels / bytes / log(2) - $2 } END { exit !(NR == 1 && d < 0.001 && d > -0.001) }'
}
bits_of() { resume all "$1" none --eval-only "${@:2}"; }
bits_of 1 --layers 1 --seq-len 299 --val-data "$scratch/bytes.bin"
check "bits a byte of shards of bytes" bits 299 240
bits_of 1 --layers 1 --seq-len 299 --val-data "$scratch/delimited/x.bin"
check "  of shards whose manifest names the delimiter" bits 299 239
bits_of 2 --layers 1 --seq-len 13 --val-data "$scratch/bytes.bin" --packed-documents --document-token 255
check "  in packed documents" bits 240 240
bits_of 1 --model "$scratch/sentencepiece.json" --tokenizer dev/test/tokenizers/llama2.json --seq-len 32 --val-data "$scratch/documents/*.txt"
tokens=$(sed -n 's/.*"tokens": \([0-9]*\).*/\1/p' "$scratch"/cache/*/made_of.json)
check "  of SentencePiece's tokens, without the space before each text" bits $((tokens - 1)) 240

# The unigram's labels are those that are measured.
printf 'abcabcabcabd' >"$scratch/train.txt"
printf 'abdd|abc|abc' >"$scratch/few.txt"
unigram() { resume all 1 none --eval-only --layers 1 --seq-len 4 --train-data "$scratch/train.txt" --val-data "$scratch/few.txt" "$@"; }
unigram_is() { # SUM COUNT: minus the sum of the logarithms, divided by the count
  awk -v want="$1/$2" -v got="$(sed -n 's/.*unigram \([0-9.]*\).*/\1/p' "$scratch/all.txt")" \
    'BEGIN { split(want, p, "/"); d = p[1] / p[2] - got; exit !(d < 1e-4 && d > -1e-4) }'
}
logs() { awk -v counts="$*" 'BEGIN { n = split(counts, c, " "); for (i = 1; i <= n; ++i) s -= log((c[i] + 1) / 267); print s }'; }
# Of the 11 labels that follow the first a of the training text, 3 are a, 4 b, 3 c and 1 d.
unigram
check "the unigram's loss of all labels" unigram_is "$(logs 4 1 1 0 3 4 3 0 3 4 3)" 11
unigram --val-tokens 4
check "  of the measured ones" unigram_is "$(logs 4 1 1 0)" 4
unigram --packed-documents --document-token 124
check "  without those that no document predicts" unigram_is "$(logs 4 1 1 3 4 3 3 4 3)" 9

# The export of a model of bytes has a tokenizer that reads them; named as a file it goes along by its usual name.
cp "$scratch/run/export/tokenizer.json" "$scratch/bytes.json"
tells "a tokenizer by another name is read" "$scratch/bytes.json, 256 tokens" run named 1 --steps 1 --seq-len 16 --val-every 0 --sample-every 0 --tokenizer "$scratch/bytes.json"
check "  and exported" cmp "$scratch/bytes.json" "$scratch/named/export/tokenizer.json"

# A run whose documents were packed is measured without that only with a warning.
run packed 1 --layers 1 --seq-len 32 --global-batch 2 --steps 1 --sample-every 0 --train-data "$scratch/bytes.bin" --val-data "$scratch/bytes.bin" \
  --val-tokens 0 --packed-documents --document-token 255
packed="trained with --packed-documents, and is measured without it"
for model in packed packed/export packed/export/; do
  bits_of 1 --model "$scratch/$model" --seq-len 32 --val-data "$scratch/bytes.bin"
  check "$model without packed documents is a warning" says all "$scratch/$model was $packed"
done
bits_of 1 --model "$scratch/packed" --seq-len 32 --val-data "$scratch/bytes.bin" --packed-documents --document-token 255
check "  not with them" says_not all "$packed"
check "  as its run measured it" [ "$(grep -o 'held-out loss [0-9.]*' "$scratch/all.txt")" = "$(grep -o 'held-out loss [0-9.]*' "$scratch/packed.txt" | tail -n 1)" ]
bits_of 1 --model "$scratch/named/export" --seq-len 16 --val-data "$scratch/short.txt"
check "  nor of a run without them" says_not all "$packed"

run longer 1 --layers 1 --seq-len 32 --global-batch 2 --steps 4 --checkpoint-every 4 --sample-every 0 --export off
measured=$(grep -o "of which .* are measured" "$scratch/longer.txt")
tells "a run that is made longer measures as many held-out tokens: $measured" "$measured" resume longer 1 auto --steps 400

printf '{"ctx": "a", "endings": ["b", "c"], "label": 1}\n{"ctx": "a", "label": 1}\n' >"$scratch/bad.jsonl"
refused "a question without answers" "bad.jsonl:2 has no key \"endings\"" "$train" --eval-choices "$scratch/bad.jsonl"
refused "no file" "cannot read the choices $scratch/none" "$train" --eval-choices "$scratch/none"
{ # a shard: magic 20240520, version 1, 3000 tokens that are 1
  printf '\x88\xd8\x34\x01\x01\0\0\0\xb8\x0b\0\0'
  head -c 1012 /dev/zero
  printf '\x01\0%.0s' {1..3000}
} >"$scratch/data.bin"
refused "nothing to measure" "--eval-only: nothing to measure" "$train" --eval-only --train-data "$scratch/data.bin"
echo "$checks checks passed"
