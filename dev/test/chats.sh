#!/usr/bin/env bash
# Covers: a run that trains on conversations: its export, checkpoints and samples have the chat template and the end of turn
# of the data, whatever the model had before; --chat puts --prompt into that template
# Timeout: 120
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
export LLMC_PROGRAM=$train # of scripts/consolidate
few=(--seq-len 32 --global-batch 4 --steps 2 --val-every 0)

# A model whose template and end of text are not those of the conversations. 1507 opens a turn, 1508 ends it.
mkdir tokenizer && cp "$root/dev/test/tokenizers/llama3.json" tokenizer/tokenizer.json
heads_model | sed 's/"vocab_size": 256/"vocab_size": 1514, "eos_token_id": 1506/' >model.json
head -c 20000 "$root/dev/data/tinyshakespeare.txt" >text.txt
quick --model model.json --tokenizer tokenizer --train-data text.txt "${few[@]}" --sample-every 0 --out made
mv made/export base
echo '{"bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>", "chat_template": "{{ messages }}"}' >base/tokenizer_config.json
for n in $(seq 200); do
  printf '<|reserved_special_token_0|>user\nSay %d<|reserved_special_token_1|><|reserved_special_token_0|>assistant\nIt is %d.<|reserved_special_token_1|>' $((n % 10)) $((n % 10))
done >talks.txt
quick --model base --train-data talks.txt --special-tokens parse --seq-len 32 --cache cut --dry-run
# talks FOLDER IDS: shards of the conversations, as dev/data/prepare --chat writes them
talks() {
  mkdir "$1"
  cp cut/*/text_000001.bin "$1/talks_train_000001.bin"
  printf '%s' '{{ bos_token }}{% for m in messages %}<|reserved_special_token_0|>{{ m.role }}
{{ m.content }}<|reserved_special_token_1|>{% endfor %}{% if add_generation_prompt %}<|reserved_special_token_0|>assistant
{% endif %}' >"$1/chat_template.jinja"
  printf '{"format": "train_llama shards 1", "delimiter": null, "shards": [], "chat": {"template": "chat_template.jinja", "end_of_turn": [%s]}}' "$2" >"$1/manifest.json"
}
talks data 1508
eos() { tr -d ' \n' <"$1/generation_config.json" | sed 's/.*"eos_token_id":\(\[[^]]*\]\|[0-9]*\).*/\1/'; }
speaks() { # FOLDER DATA EOS: it has the data's template, in both places, and ends at these tokens
  cmp "$1/chat_template.jinja" "$2/chat_template.jinja" && [ "$(eos "$1")" = "$3" ] && python3 - "$1" <<'PY'
import json, sys
folder = sys.argv[1]
assert json.load(open(folder + "/tokenizer_config.json"))["chat_template"] == open(folder + "/chat_template.jinja").read()
PY
}

tuned=(--model base "${few[@]}" --sample-every 0)
quick "${tuned[@]}" --train-data 'data/*_train_*.bin' --checkpoint-every 1 --out tuned
check "an export has the data's template, and ends at its turns first" speaks tuned/export data "[1508,1506]"
check "the banner says so" grep -q "in the form of data/chat_template.jinja, which the export gets in place of the model's other template; samples end with a turn: <|reserved_special_token_1|> (1508)" log
check "a run on text keeps the model's own" eval '[ "$(eos base)" = 1506 ]'
quick "${tuned[@]}" --train-data text.txt --out plain
check "  template and end" eval '! [ -e plain/export/chat_template.jinja ] && grep -q "{{ messages }}" plain/export/tokenizer_config.json && [ "$(eos plain/export)" = 1506 ]'
quick --resume tuned/checkpoints/step-00000001 --out goes_on
check "a run that goes on has them, too" speaks goes_on/export data "[1508,1506]"
check "  and does not take them for changes" not grep -q "changed since" log
mv data away && mv base away.base
"$root/scripts/consolidate" tuned whole >log 2>&1 || { cat log && fail "consolidate"; }
mv away data && mv away.base base
check "so has a checkpoint that is made a model without its data" speaks whole data "[1508,1506]"

echo "-- manifests"
talks other '1507, 1508'
echo "{{ messages | length }}" >other/chat_template.jinja
quick "${tuned[@]}" --train-data '{data,other}/*_train_*.bin' --out two
check "of two templates the first is exported, and all turns' ends" speaks two/export data "[1508,1507,1506]"
check "  which is told" grep -q "data and other were rendered by different chat templates: the export has that of data" log
talks beyond 1514
refused "an end that the model does not have" "token 1514 ends a turn, and the model has 1514" "$train" "${tuned[@]}" --train-data 'beyond/*.bin'
rm beyond/chat_template.jinja
refused "a template that was left behind" "beyond/chat_template.jinja: it is not there, and it rendered the conversations" "$train" "${tuned[@]}" --train-data 'beyond/*.bin'
sed -i 's/chat_template.jinja/..\/text.txt/' beyond/manifest.json
refused "a template elsewhere" '"../text.txt" is no name of a file in beyond' "$train" "${tuned[@]}" --train-data 'beyond/*.bin'

ln -sf ../text.txt data/chat_template.jinja
refused "a link out of the data's folder" "outside of this folder" "$train" "${tuned[@]}" --train-data 'data/*.bin'

echo "-- samples"
talks all "$(seq -s, 0 1513)" # whatever the weights say, the first token ends the turn
quick --model base "${few[@]}" --sample-every 2 --sample-tokens 50 --prompt KING --train-data 'all/*_train_*.bin' --out ends
check "samples of a training end at the turn's end" eval '[ "$(sed -n "s/.*\"sample\":\"\([^\"]*\)\".*/\1/p" ends/train.jsonl | tail -n 1 | wc -c)" -lt 30 ]'

hand=$'<|reserved_special_token_0|>system\nBe brief<|reserved_special_token_1|><|reserved_special_token_0|>user\nSay 7<|reserved_special_token_1|><|reserved_special_token_0|>assistant\n'
ask() { "$train" --model tuned/export --sample-only --quiet --temperature 0 --sample-tokens 12 "$@"; }
if ask --chat --prompt 'Say 7' --system 'Be brief' >answer 2>refused; then
  ask --prompt "$hand" >whole.txt
  check "--chat answers what the prompt in the template's form is answered" \
    eval '[ -s answer ] && [ "$(cat whole.txt)" = $'"'system\nBe briefuser\nSay 7assistant\n'"'"$(cat answer)" ]'
  limit=60 ranks 2 "$train" --model tuned/export --sample-only --quiet --temperature 0 --sample-tokens 12 \
    --chat --prompt 'Say 7' --system 'Be brief' >shared.txt 2>refused || { cat refused && fail "two ranks"; }
  check "  also on two ranks" cmp answer shared.txt
  refused "--chat without a template" "there is no chat template next to" "$train" --model model.json --tokenizer tokenizer --sample-only --chat --prompt x
else
  check "a program without the library says how to get it" grep -q "scripts/get_minja" refused
fi
shows "--system without --chat is told to change nothing" "--system changes nothing: --chat is off" --model tuned/export --sample-only --sample-tokens 1 --system x --prompt x
echo "$checks checks passed"
