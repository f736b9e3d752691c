#!/usr/bin/env bash
# Covers: promise 4: what a run takes over: the options of the checkpoint that is intact, also where a newer one is damaged,
# twice, and only if all ranks see the same, or of its config.json, where there is no checkpoint yet; nothing that names a file to write; its model, tokenizer
# and settings of generation, where those that it began with are gone or replaced; a checkpoint of an older program, and of a
# later one, which is refused by name; consolidating, with nothing but the checkpoint
# Timeout: 120
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
export LLMC_PROGRAM=$train LLMC_THREADS=1
small=(--layers 1 --seq-len 16 --global-batch 4 --val-every 0 --sample-every 0 --export off)
options=("${small[@]}" --lr 0.004 --checkpoint-every 4)
same_losses() { cmp <(losses "$1/train.jsonl") <(losses "$2/train.jsonl"); }
# edit FILE PYTHON: a JSON file, as `j`. The manifest of a checkpoint then no longer lists it.
edit() { python3 "$root/dev/test/edit_json.py" "$1" "$2"; }

echo "-- a damaged checkpoint's options"
run straight 1 --steps 12
damage() { sed -i 's/"lr": 0.004/"lr": 0.006/' "$(checkpoint "$1" 8)/state.json"; }
for n in 1 2; do
  cp -r straight hurt$n && rm -r "$(checkpoint hurt$n 12)"
  damage hurt$n
  resume hurt$n $n auto
  check "$n: the one before is taken" says hurt$n "goes on    after step 4 of"
  check "  with its own options" grep -q '"lr": 0.004' hurt$n/config.json
done
check "  and the losses are the same" same_losses straight hurt1
damage hurt1
rm -r "$(checkpoint hurt1 12)"
resume hurt1 1 auto
check "a second one of the same step is set aside, too" [ -d "$(checkpoint hurt1 8).refused-2" ]
check "  and the losses are the same" same_losses straight hurt1

mkdir a b
run b/run 1 --steps 4 --seed 8
cp -r straight a/run && rm -r "$(checkpoint a/run 12)" "$(checkpoint a/run 8)"
apart() { LLMC_THREADS=1 mpirun --oversubscribe --bind-to none -wdir a -n 1 "$train" "$@" : -wdir b -n 1 "$train" "$@"; }
refused "ranks that see checkpoints of other options" "the ranks do not see the same files" apart --resume run --out on

echo "-- killed before the first checkpoint"
killed() { # NAME: sets `more`, steps that it had not reached, however late it was killed
  begin "$1" "^step  *2/" "$train" "${small[@]}" --steps 100000 --lr 0.001 --seed 7 --trace "$1.trace" --out "$1"
  kill -KILL "$child"
  wait "$child" 2>/dev/null || true
  child=""
  more=$(($(losses "$1/train.jsonl" | wc -l) + 3))
}
own_options() { cmp <(grep -v '"steps"' asked.json) <(grep -v '"steps"' "$1/config.json"); }
killed early
cp early/config.json asked.json
of_early=$more
resume early 1 auto --steps "$of_early"
check "it goes on with its own options" own_options early
check "  as it says" says early "starts from the beginning, with the options of its config.json"
check "  in its folder" [ "$(losses early/train.jsonl | wc -l)" = "$of_early" ]
killed latest
"$train" --resume auto --steps "$more" >latest.txt 2>&1
check "so does runs/latest" own_options latest
check "  in its folder" [ "$(losses latest/train.jsonl | wc -l)" = "$more" ]
rm latest/config.json
refused "a run without its config.json" "has the log of a run and not its options" "$train" --resume auto --out latest

echo "-- a config.json names no start"
check "a saved one has neither --out nor --resume" eval '! grep -qE "\"(out|resume|trace)\"" asked.json'
run second 1 --config asked.json --steps 2
check "  and begins another run" [ "$(losses second/train.jsonl | wc -l)" = 2 ]
echo '{"out": "fourth", "layers": 1, "seq_len": 16, "val_every": 0, "sample_every": 0, "steps": 1}' >by_hand.json
"$train" --config by_hand.json >/dev/null
check "one that was written by hand may name a folder" [ -e fourth/train.jsonl ]

echo "-- a stranger's checkpoint"
cp -r "$(checkpoint straight 8)" strange
echo mine >mine.txt
edit strange/state.json 'j["options"].update(trace="mine.txt", out="early", consolidate="gone", config="by_hand.json", resume="auto", rendezvous="meet",
  memory_limit="1B", tuning="mine.txt", dry_run=True, eval_only=True, comm_timeout=1e-9)
j["options"]["host-memory-limit"] = "1B"'
for n in 1 2; do
  resume strange-run$n $n strange --steps 12
  check "$n: it trains on" says strange-run$n "step 12/12"
done
check "  with the right losses" cmp <(losses straight/train.jsonl | tail -n 4) <(losses strange-run1/train.jsonl)
check "  and writes to no other place" eval '[ "$(cat mine.txt)" = mine ] && [ ! -e gone ] && [ ! -e meet ] && [ "$(losses early/train.jsonl | wc -l)" = "$of_early" ]'
edit strange/state.json 'j["version"] = 99'
cp -r straight later && rm -r "$(checkpoint later 12)"/* && mv strange/* "$(checkpoint later 12)"
for file in state.json manifest.json; do edit "$(checkpoint later 12)/$file" 'j["step"] = 12'; done
refused "one of a later program" "state.json is of version 99, and this program knows the versions up to" "$train" --resume auto --out later
check "  stays as it is" [ -e "$(checkpoint later 12)/manifest.json" ]

echo "-- a stranger's run, with links among its checkpoints"
for link in step-00000001 step-00000003.partial step-00000016.partial; do
  rm -rf victim links && mkdir -p victim/deep && echo mine | tee victim/{state,manifest}.json victim/deep/thesis >/dev/null
  cp -r straight links
  ln -s "$scratch/victim" "links/checkpoints/$link"
  before=$(find "$scratch/victim" -type f -exec cksum {} +)
  "$train" --resume auto --out links --steps 16 --keep-checkpoints 1 >links.txt 2>&1 || true
  check "$link: nothing is written or removed behind it" [ "$before" = "$(find "$scratch/victim" -type f -exec cksum {} +)" ]
done
rm -rf links && cp -r straight links && mv links/checkpoints victim/ && ln -s "$scratch/victim/checkpoints" links/checkpoints
refused "all of them behind a link" "links/checkpoints is a link" "$train" --resume auto --out links --steps 16

echo "-- a checkpoint of an older program"
python3 - <<'END'
# The data with which dev/test/older_checkpoints/version-1 was written, after 2 of 4 steps.
import struct
tokens = [(i * i + 3 * i) % 29 + 1 for i in range(400)]
open("old.bin", "wb").write(struct.pack("<3i", 20240520, 1, 400).ljust(1024, b"\0") + struct.pack("<400H", *tokens))
END
# as_then LOSSES: the losses, to 0.001: on another processor they have other last bits.
as_then() {
  paste -d' ' "$1" <(losses older/train.jsonl) | awk '{ d = $4 - $2; bad += $1 != $3 || d > 1e-3 || d < -1e-3 } END { exit bad || NR != 2 }'
}
older=$root/dev/test/older_checkpoints/version-1
resume older 1 "$older" --export on
check "it goes on" as_then "$older.losses"
check "  the export has its tokenizer's files" cmp older/export/chat_template.jinja "$older/chat_template.jinja"
"$root/scripts/consolidate" "$older" older-whole >/dev/null
check "  and is consolidated" [ -s older-whole/model.safetensors ]

echo "-- model, tokenizer and settings of generation"
"$train" "${small[@]:0:10}" --steps 1 --tokenizer "$root/dev/test/tokenizers/llama3.json" --vocab-size 1514 \
  --out made >made.txt 2>&1 || { cat made.txt && fail "a model"; }
mv made/export base
echo "{{ messages }}" >base/chat_template.jinja
echo '{"bos_token": "<|begin_of_text|>", "model_max_length": 77}' >base/tokenizer_config.json
echo '{"do_sample": true, "temperature": 0.6}' >base/generation_config.json
options=(--model base --seq-len 16 --global-batch 4 --val-every 0 --sample-every 0 --train-data "$root/README.md")
run whole 1 --steps 4 --checkpoint-every 2
same_export() { # FOLDER: but for the weights' and the card's figures
  for file in config.json generation_config.json tokenizer.json tokenizer_config.json chat_template.jinja model.safetensors; do
    cmp "whole/export/$file" "$1/$file" || return 1
  done
}
sed -i 's/"<|begin_of_text|>"/"<|begin_of_text_|>"/' base/tokenizer.json
echo "other" >base/chat_template.jinja
for n in 1 2; do
  resume replaced$n $n "$(checkpoint whole 2)"
  check "$n: a tokenizer and a template that were replaced are told" says replaced$n "base/tokenizer.json, base/chat_template.jinja changed since the run began"
done
check "  and the export is that of the run" same_export replaced1/export
resume named 1 "$(checkpoint whole 2)" --tokenizer "$root/dev/test/tokenizers/llama3.json"
check "the same tokenizer elsewhere: no word" says_not named "tokenizer is not what"
rm -r base
resume gone 1 "$(checkpoint whole 2)" --steps 6 --checkpoint-every 2 --keep-checkpoints 1
resume again 1 "$(checkpoint gone 6)" --steps 7 --checkpoint-every 1
check "the model's folder is gone: no word" eval '! grep -E "changed since|is not what" again.txt'
mkdir elsewhere
(cd elsewhere && "$root/scripts/consolidate" ../whole/checkpoints/step-00000004 here >/dev/null)
check "consolidated from another place: the export" same_export elsewhere/here
(cd elsewhere && "$root/scripts/consolidate" ../again there --quiet >/dev/null)
check "  with options, after three runs" cmp whole/export/tokenizer_config.json elsewhere/there/tokenizer_config.json
echo '{"mine": "a secret"}' >secret.json
cp -r "$(checkpoint whole 4)" linked
ln -sf ../secret.json linked/generation_config.json
python3 - linked/manifest.json <<'END'
import json, sys
manifest = json.load(open(sys.argv[1]))
del manifest["files"]["generation_config.json"]
json.dump(manifest, open(sys.argv[1], "w"))
END
refused "a link out of a checkpoint" "is a link to" "$root/scripts/consolidate" linked published
printf x | dd of="$(checkpoint whole 4)/chat_template.jinja" conv=notrunc status=none
refused "a template that the disk has changed" "chat_template.jinja has the checksum" "$root/scripts/consolidate" "$(checkpoint whole 4)" bad
echo "$checks checks passed"
