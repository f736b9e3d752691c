#!/usr/bin/env bash
# Covers: what a run on conversations says to whoever begins with it: held-out conversations that are shorter than a
# sequence
# Timeout: 120
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
end, talks, learnt, turn = 1506, [[]], [[]], []
for token in tokens:
    if token == 1505: continue # begins a text
    talks[-1].append(token)
    turn = [token] if token == 1507 else turn + [token]
    assistant = len(talks[-1]) > 8 and talks[-1].count(1507) == 2
    learnt[-1].append(int(assistant and len(turn) > 3))
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

options=(--model made --train-data data --packed-documents on --seq-len 128 --epochs 4)
run tuned 1
check "held-out conversations that are fewer tokens than a sequence are measured" says tuned "all of which are measured: data/*_val_*.bin"
check "  in one that is not full" [ "$(numbers tuned val_loss | wc -l)" -ge 2 ]
echo "$checks checks passed"
