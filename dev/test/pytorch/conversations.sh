#!/usr/bin/env bash
# Covers: conversations from JSON lines to the first step of a training: dev/data's shards and masks, packed, give PyTorch's
# loss; without the borders, or without the masks, they do not
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
# shellcheck source=dev/test/pytorch/model.bash
source "$(dirname "$0")/model.bash"
in_own_tree
T=64
model_with_tokenizer llama3 "$scratch/model"
# Speeches in turn, "NAME:" and the text: a conversation of two to six messages each.
awk -v RS= '{ gsub(/[\\"]/, ""); gsub(/\n/, " ")
  if (n == 0) { count = 2 + 2 * (i++ % 3); printf "{\"messages\": [" }
  printf "%s{\"role\": \"%s\", \"content\": \"%s\"}", n ? ", " : "", n % 2 ? "assistant" : "user", $0
  if (++n == count) { n = 0; print "]}" }
  if (i > 60 && n == 0) exit }' dev/data/tinyshakespeare.txt >"$scratch/talks.jsonl"
cat >"$scratch/template.jinja" <<'END'
{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}{{ m.content + eos_token }}{% endgeneration %}{% else %}{{ '[' + m.content + '] ' }}{% endif %}{% endfor %}
END
LLMC_DATA_PYTHON=$PYTHON quietly dev/data/prepare "$scratch/talks.jsonl" --chat --template "$scratch/template.jinja" \
  --tokenizer "$scratch/model" --out "$scratch/shards" --val-fraction 0 --shard-tokens $((T + 1))
tokens=$(find "$scratch/shards" -name '*.bin' -printf '%s\n' | awk '{ n += ($1 - 1024) / 2 } END { print n }')
windows=$(((tokens + T - 1) / T))
check "several windows" [ "$windows" -ge 20 ]

step() { # OUT OPTIONS…: a training that sees all windows in each step
  quietly "$train" --train-data "$scratch/shards/*.bin" --seq-len $T --global-batch "$windows" --val-every 0 \
    --sample-every 0 --out "$scratch/$1" "${@:2}"
}
step trained --model "$scratch/model/config.json" --packed-documents on --steps 15 --lr 3e-3
compare() { # OUT
  "$PYTHON" dev/reference/compare_conversations.py "$scratch/trained/export" "$scratch/shards" $T "$scratch/$1/train.jsonl"
}
same_weights=(--model "$scratch/trained/export" --steps 1)
step packed "${same_weights[@]}" --packed-documents on
check "packed and masked: PyTorch's loss" compare packed
step two "${same_weights[@]}" --packed-documents on --micro-batch 1
check "  also a window at a time" compare two
step plain "${same_weights[@]}"
check "documents that see each other are noticed" eval '! compare plain'
for mask in "$scratch"/shards/*.mask; do # PyTorch learns every token
  { head -c 1024 "$mask" && tail -c +1025 "$mask" | tr '\0' '\1'; } >"$scratch/ones"
  mv "$scratch/ones" "$mask"
done
check "learning what the mask excludes is noticed" eval '! compare packed'
echo "$checks checks passed"
