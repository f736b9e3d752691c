#!/usr/bin/env bash
# Covers: what a run on conversations says to whoever begins with it: held-out conversations that are shorter than a
# sequence, samples that begin with a question of the data, too few steps, a run that is made longer, questions
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"

# Weights and a tokenizer of 1514 tokens, of which 1507 opens a turn and 1508 ends it.
mkdir tokenizer && cp "$root/dev/test/tokenizers/llama3.json" tokenizer/tokenizer.json
heads_model | sed 's/"vocab_size": 256/"vocab_size": 1514, "eos_token_id": 1506/' >model.json
head -c 20000 "$root/dev/data/tinyshakespeare.txt" >text.txt
run made 1 --model model.json --tokenizer tokenizer --train-data text.txt --seq-len 32 --global-batch 4 --steps 1 --val-every 0 --sample-every 0
for n in $(seq 40); do
  printf '<|reserved_special_token_0|>user\nSay %d<|reserved_special_token_1|><|reserved_special_token_0|>assistant\nIt is %d.<|reserved_special_token_1|><|end_of_text|>' $((n % 10)) $((n % 10))
done >talks.txt
run cut 1 --model made --train-data talks.txt --special-tokens parse --seq-len 32 --cache cut --dry-run
# As dev/data/prepare --chat writes them: each conversation ends with a token, and what the assistant says is learnt. Two of
# them are held out.
mkdir data && python3 - cut/*/text_000001.bin data <<'PY'
import array, json, struct, sys
tokens, folder = array.array("H", open(sys.argv[1], "rb").read()[1024:]), sys.argv[2]
newline = json.load(open("tokenizer/tokenizer.json"))["model"]["vocab"]["Ċ"]
end, talks, learnt, turn = 1506, [[]], [[]], []
for token in tokens:
    if token == 1505: continue # begins a text
    talks[-1].append(token)
    turn = [token] if token == 1507 else turn + [token]
    learnt[-1].append(int(talks[-1].count(1507) == 2 and newline in turn[:-1] and token != end))
    if token == end: talks.append([]), learnt.append([])
for split, first, last in (("val", 0, 2), ("train", 2, 40)):
    ids, mask = sum(talks[first:last], []), sum(learnt[first:last], [])
    name = f"{folder}/talks_{split}_000000"
    open(name + ".bin", "wb").write(struct.pack("<256i", 20240520, 1, len(ids), 1, *[0] * 252) + array.array("H", ids).tobytes())
    open(name + ".mask", "wb").write(struct.pack("<256i", 20241121, 1, len(ids), 0, *[0] * 252) + bytes(mask))
template = ("{{ bos_token }}{% for m in messages %}<|reserved_special_token_0|>{{ m.role }}\n{{ m.content }}"
    "<|reserved_special_token_1|>{% endfor %}{% if add_generation_prompt %}<|reserved_special_token_0|>assistant\n{% endif %}")
open(folder + "/chat_template.jinja", "w").write(template)
json.dump({"format": "train_llama shards 1", "delimiter": {"id": end, "place": "after"}, "shards": [],
    "chat": {"template": "chat_template.jinja", "end_of_turn": [1508]}}, open(folder + "/manifest.json", "w"))
PY


options=(--model made --seq-len 128 --sample-tokens 20)
chats=(--train-data data --packed-documents on)
tells "held-out conversations that are fewer tokens than a sequence are measured" "all of which are measured: data/*_val_*.bin" run tuned 1 "${chats[@]}" --epochs 4 --checkpoint-every 10 --keep-checkpoints 0
check "  in one that is not full" [ "$(numbers tuned val_loss | wc -l)" -ge 2 ]

echo "-- samples of a training"
check "they begin with the question of a held-out conversation" says tuned "samples    begin as the first conversation of the held-out data does"
check "  as the template renders it" eval 'grep -A 3 "^sample after training" tuned.txt | tr "\n" "|" | grep -qF "|user|Say 1assistant|"'
run trained 1 --steps 1 --packed-documents on --train-data 'data/*_train_*.bin'
check "  without one, of one that is trained on" eval 'says trained "conversation of the training data" && grep -A 2 "^sample after" trained.txt | grep -qx "Say 3assistant"'
run prompted 1 "${chats[@]}" --steps 1 --prompt 'KING'
check "  or with --prompt" eval 'says_not prompted "begin as the first" && grep -A 1 "^sample after" prompted.txt | grep -q "^KING"'
check "the end tells how to talk to the model" says tuned "talk to it: ./train_llama --model $scratch/tuned --sample-only --quiet --chat --prompt"
check "  and the card of the export, how to do so in PyTorch" grep -q 'tokenizer.apply_chat_template(\[{"role": "user"' tuned/export/README.md
check "what holds conversations out is told" says trained "nothing is held out: dev/data/prepare --val-fraction"

echo "-- too few steps"
few="at the learning rate 0.0004 a model that is trained already learns hardly anything new: more --epochs (or --steps), or a higher --lr"
check "a warning" says trained "warning: with 1 step $few"
check "  not of 28 steps" says_not tuned "$few"
run plain 1 --steps 1 --train-data text.txt
check "  nor of a text" says_not plain "$few"

echo "-- a finished run that is made longer"
rm -r "$(checkpoint tuned 28)"
tells "which steps are trained again is told" "steps 21 to 28 have no checkpoint and are trained again" resume tuned 1 auto --epochs 5
check "what changes is told in the words of the command line" says tuned "             --epochs 5 (was --steps 28)"
check "  and nothing else" [ "$(grep -c '(was ' tuned.txt)" = 1 ]
check "no option is listed that nobody asked for" eval 'says_not tuned "option     --val-every" && says tuned "option     --epochs 5"'

echo "-- questions"
# ask OPTIONS…: of the trained model; $scratch/asked.txt has what it says, warnings, too.
ask() { resume asked 1 none --model tuned --sample-only --sample-tokens 3 "$@"; }
ask --prompt 'Say 7' --temperature 0.5 --seed 3
check "the banner shows how tokens are drawn" says asked "drawn      at temperature 0.5 with seed 3"
check "a model that has a chat template is asked with --chat: told" says asked "warning: the model has a chat template, and --prompt is continued as it stands: --chat"
ask --quiet --prompt 'Say 7' --system 'Be brief' --temperature 0
check "an option that changes nothing is told, even with --quiet" says asked "warning: --system changes nothing: --chat is off"
ask --prompt '<|reserved_special_token_0|>user' --temperature 0
check "  a prompt in the template's form needs no hint" eval 'says_not asked "has a chat template" && says asked "always the likeliest token: temperature 0"'
if "$train" --model tuned --sample-only --sample-tokens 3 --temperature 0 --quiet --chat --prompt 'Say 7' >asked.txt 2>&1; then
  check "an answer without an end is told" says asked "warning: the answer is cut off at --sample-tokens 3"
  run meant 1 "${chats[@]}" --steps 1 --chat --prompt 'Say 7'
  check "--chat in a training is for its samples" says_not meant "--sample-only talks"
  "$train" --model tuned --dry-run --seq-len 32 --chat --prompt 'Say 7' >forgot.txt 2>&1
  check "  without data --sample-only was forgotten" says forgot "warning: --chat: this run trains"
else
  check "a program without the library says how to get it" says asked "scripts/get_minja"
fi
refused "a folder that is not there" "did you mean ./tuned?" "$train" --model ./tunde --sample-only
printf '{"messages": [{"role": "user", "content": "Hi"}]}\n' >talks.jsonl
refused "conversations that were not prepared" "dev/data/prepare talks.jsonl --chat --tokenizer MODEL --out data/NAME" "$train" --model made --train-data talks.jsonl
echo "$checks checks passed"
