#!/usr/bin/env bash
# Covers: models that are loaded: samples and questions see as much as the model and the memory allow, and what is cut is
# told; generation_config.json and pad_token_id pass through a training; the learning rate's default; a model's card has the
# run's name and short figures
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
short=(--steps 1 --global-batch 1 --val-every 0)
"$train" "${short[@]}" --layers 1 --seq-len 16 --sample-every 0 --init depth-scaled --out run >run.txt 2>&1 || { cat run.txt && fail "a run"; }
prompt=$(head -c 400 "$root/dev/data/tinyshakespeare.txt")
says() { grep -qF -- "$2" "$1"; }
silent() { ! grep -q "^warning" "$1"; }
# sample FILE RANKS OPTIONS…: what was said, and in FILE.text the text.
sample() {
  ranks "$2" "$train" --sample-only --prompt "$prompt" --sample-tokens "${tokens:-20}" "${@:3}" >"$1" 2>&1 || { cat "$1" && fail "a sample"; }
  sed '1,/sample of the model/d' "$1" >"$1.text"
}

echo "-- samples"
sample whole 1 --model run/export
sample same 1 --model run/export --seq-len 500
sample short 1 --model run/export --seq-len 100
check "a prompt is not cut to the length of a training" cmp whole.text same.text
check "  so nothing is said" silent whole
check "--seq-len bounds it" says short "warning: --prompt: the first 300 of its 400 tokens are not seen: it is longer than --seq-len 100; the model has 2048 positions"
check "  and the sample is another one" eval '! cmp -s whole.text short.text'
cp -r run/export few && sed -i 's/"max_position_embeddings": 2048/"max_position_embeddings": 150/' few/config.json
sample few.txt 1 --model few
check "the model's positions bound it" says few.txt "the first 250 of its 400 tokens are not seen: it is longer than the model's 150 positions"
for n in 1 2; do
  sample little "$n" --model run/export --memory-limit 3MiB
  check "memory bounds it, $n ranks" grep -q "first [0-9]* of its 400 tokens are not seen: it is longer than the [0-9]* tokens that fit in memory; the model has 2048" little
done
sample context 2 --model run/export --context-parallel-degree 2
check "two ranks share the sequence: the same text" cmp whole.text context.text
"$train" "${short[@]}" --model run/export --seq-len 64 --prompt "$prompt" --sample-tokens 5 --out samples >samples.txt
check "samples of a training see its T" says samples.txt "the first 336 of its 400 tokens are not seen: it is longer than --seq-len 64"

echo "-- questions"
printf '{"ctx": "%s", "endings": ["b", "c"], "label": 1}\n{"ctx": "a", "endings": ["b", "c"], "label": 1}\n' "$prompt" |
  tr -s '\n' ' ' | sed 's/} {/}\n{/' >questions.jsonl
measure() { # FILE OPTIONS…
  "$train" --model run/export --eval-only "${@:2}" >"$1" 2>&1 || { cat "$1" && fail "an evaluation"; }
}
figures() { grep -E '^ *(held-out|[0-9]+ choices)' "$1"; }
measure plain
measure asked --eval-choices questions.jsonl
printf '{"ctx": "a", "endings": ["%0200d", "c"], "label": 1}\n' 0 >answers.jsonl
measure answers --eval-choices answers.jsonl
measure bounded --eval-choices questions.jsonl --seq-len 128
check "a question is not cut where nothing is trained" silent asked
check "an answer may be as long as the model has positions" says answers "1 choices | acc"
check "--seq-len bounds it" says bounded "warning: --eval-choices: 1 of 2 questions lose their beginning: they are longer than --seq-len 128"
check "the held-out loss is that of T tokens all the same" diff <(figures plain) <(figures asked | head -n 1)
"$train" "${short[@]}" --model run/export --seq-len 64 --sample-every 0 --eval-choices questions.jsonl --out cut >cut.txt
check "a training cuts it to its T" says cut.txt "1 of 2 questions lose their beginning: they are longer than --seq-len 64"

echo "-- the learning rate"
check "a tenth of the default, with the reason" says cut.txt "learning rate 0.0004, warm-up 0 steps: a tenth of the default"
"$train" --dry-run --model run/export --lr 1e-3 >asked.txt
check "unless it is asked for" eval '! grep -q "a tenth" asked.txt'

echo "-- generation_config.json"
cp -r run/export generating
printf '{"do_sample": true, "temperature": 0.6, "eos_token_id": [250, 251], "transformers_version": "4.45.0"}' >generating/generation_config.json
sed -i 's/"bos_token_id": null/"bos_token_id": 3, "pad_token_id": 7/' generating/config.json
"$train" "${short[@]}" --model generating --seq-len 16 --sample-every 0 --checkpoint-every 1 --out trained >trained.txt 2>&1 || { cat trained.txt && fail "a training"; }
LLMC_PROGRAM=$train "$root/scripts/consolidate" trained whole_again >consolidated.txt
for export in trained/export whole_again; do
  for key in '"do_sample": true' '"temperature": 0.6' '"transformers_version": "4.45.0"' '"bos_token_id": 3' '"pad_token_id": 7'; do
    check "$export keeps $key" says $export/generation_config.json "$key"
  done
  check "$export keeps all end tokens" grep -q 250,251 <(tr -d ' \n' <$export/generation_config.json)
  check "$export/config.json keeps pad_token_id" says $export/config.json '"pad_token_id": 7'
done

echo "-- the model's card"
check "its title is the run's name" grep -qxF "# trained" trained/export/README.md
check "  or the folder's" grep -qxF "# whole_again" whole_again/README.md
# rows FILE: its figures, without what a clock says.
rows() { sed -n 's/^| \([a-z_]*\) | \([0-9.e-]*k\?\) |$/\1 \2/p' "$1/README.md" | grep -vE '^(step_ms|tokens_per_s) '; }
check "figures have four decimals, and stand once" eval '[ "$(rows trained/export | sed -E "s/[0-9]+[.][0-9]{4}$/decimals/")" = \
  "$(printf "%s\n" "steps 1" "tokens 16" "loss decimals" "grad_norm decimals" "lr decimals")" ]'
check "  also from a checkpoint" [ "$(rows trained/export)" = "$(rows whole_again)" ]

echo "-- what a generation_config.json may hold"
printf '{"eos_token_id": [%s]}' "$(seq -s , 0 255)" >generating/generation_config.json
sample ended 1 --model generating
tokens=1 sample one 1 --model run/export
check "a text ends with any of the end tokens" cmp one.text ended.text
printf '[]' >generating/generation_config.json
refused "a generation_config.json that is none" "generating/generation_config.json" "$train" --model generating --dry-run
echo "$checks checks passed"
