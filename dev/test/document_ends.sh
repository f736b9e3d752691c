#!/usr/bin/env bash
# Covers: samples, checkpoints and exports begin and end where the documents of the training data do: at the token that the
# manifest names, or that the program puts before a text; a model keeps its own end, and bytes have none; the banner says so
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"

mkdir tokenizer after both && cp "$root/dev/test/tokenizers/llama3.json" tokenizer/tokenizer.json
# Documents of one token, the letter a (64): what follows each token is certain, and soon learnt.
python3 - <<'PY'
import json, struct
def shards(folder, document, **delimiter):
    tokens = document * 2000
    head = struct.pack("<3i", 20240520, 1, len(tokens)).ljust(1024, b"\0")
    open(folder + "/a_train_000001.bin", "wb").write(head + struct.pack(f"<{len(tokens)}H", *tokens))
    json.dump({"format": "train_llama shards 1", "delimiter": delimiter, "shards": []}, open(folder + "/manifest.json", "w"))
shards("after", [64, 1506], place="after", token="<|end_of_text|>", id=1506)
shards("both", [1505, 64, 1506], place="both", token="<|begin_of_text|>", id=1505, end_token="<|end_of_text|>", end_id=1506)
PY
heads_model | sed 's/"vocab_size": 256/"vocab_size": 1514/' >model.json
heads_model | sed 's/"vocab_size": 256/"vocab_size": 1514, "eos_token_id": 7/' >ends.json
few=(--tokenizer tokenizer --seq-len 32 --global-batch 4 --sample-tokens 20 --temperature 0)
ids() { tr -d ' \n' <"$1/generation_config.json" | grep -o '"[be]os_token_id":[0-9nul]*' | sort | tr -d '"\n'; }
last_sample() { sed -n 's/.*"sample":"\([^"]*\)".*/\1/p' "$1/train.jsonl" | tail -n 1; }

shows "the banner says where samples begin and end" "samples *begin after <|end_of_text|> (1506), and end with <|end_of_text|> (1506) or after 20 tokens" --model model.json "${few[@]}" --train-data after --steps 40 --lr 0.01 --checkpoint-every 40 --out ended
check "what follows each token is learnt" [ "$(sed -n 's/.*"step":40,"loss":\([0-9]*\)\..*/\1/p' ended/train.jsonl)" = 0 ]
check "a sample is one document: $(last_sample ended)" [ "$(last_sample ended)" = a ]
check "the export ends with the token after documents" [ "$(ids ended/export)" = "bos_token_id:nulleos_token_id:1506" ]
check "  and so does the checkpoint" grep -q '"eos_token_id": 1506' ended/checkpoints/step-00000040/generation_config.json
check "  and --sample-only of it" [ "$("$train" --model ended/export --sample-only --quiet --temperature 0 --sample-tokens 20)" = a ]
mv after moved
quick --resume ended/checkpoints/step-00000040 --train-data 'moved/*.bin' --steps 41 --out on
check "a run that goes on exports it, too" [ "$(ids on/export)" = "bos_token_id:nulleos_token_id:1506" ]

short=("${few[@]}" --steps 1 --sample-every 1)
quick --model model.json "${short[@]}" --train-data both --out both.run
check "a token before and another one after" [ "$(ids both.run/export)" = "bos_token_id:1505eos_token_id:1506" ]
check "  both end samples" grep -q "begin after <|begin_of_text|> (1505), and end with <|end_of_text|> (1506), <|begin_of_text|> (1505) or" log
quick --model ends.json "${short[@]}" --train-data moved --prompt b --out own
check "a model keeps its own end" [ "$(ids own/export)" = "bos_token_id:nulleos_token_id:7" ]
check "  and both end samples, also with a prompt" grep -q "samples *continue --prompt, and end with ( (7), <|end_of_text|> (1506) or" log
head -c 9000 "$root/dev/data/tinyshakespeare.txt" >text.txt
quick --model model.json "${short[@]}" --train-data text.txt --out text.run
check "a text that the program cuts: the token that it puts first" [ "$(ids text.run/export)" = "bos_token_id:1505eos_token_id:1505" ]
shows "bytes begin after a newline" "samples *begin after a newline, and have 200 tokens" --layers 1 --seq-len 32 --global-batch 2 --steps 1 --train-data text.txt --out bytes
check "  and have no end" [ "$(ids bytes/export)" = "bos_token_id:nulleos_token_id:null" ]
echo "$checks checks passed"
