#!/usr/bin/env bash
# Covers: promise 2: a mixture of sources with shares, masks and documents of their own: the same losses of each source on 1, 2 and 4
# ranks, with tensor and context parallelism, with graphs, and to the last bit over a resume; other shares are refused;
# promise 6: the held-out loss of a source is the one that --eval-only measures on it
# Timeout: 600
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
cd "$scratch"
text=$root/dev/data/tinyshakespeare.txt
mkdir web books halves chats bare
head -c 20000 "$text" >web/1.txt
head -c 40000 "$text" | tail -c 20000 >web/2.txt
head -c 70000 "$text" | tail -c 9000 >books/a,b.txt
split -b 5000 books/a,b.txt halves/
head -c 200000 "$text" | tail -c 4000 >web-val.txt
head -c 300000 "$text" | tail -c 3000 >books-val.txt
python3 - <<'END'
"""Shards of bytes: chats with a mask, whose documents end with the byte 10, and bare ones of which nothing is known."""
import json, pathlib, struct
text = pathlib.Path("web/1.txt").read_bytes()
def write(path, magic, form, data):
    pathlib.Path(path).write_bytes(struct.pack("<3i", magic, 1, len(data)).ljust(1024, b"\0") + struct.pack(f"<{len(data)}{form}", *data))
write("chats/x_train_0.bin", 20240520, "H", text[:6000])
write("chats/x_train_0.mask", 20241121, "B", [n % 3 > 0 for n in range(6000)])
write("chats/x_val_0.bin", 20240520, "H", text[6000:8000])
write("chats/x_val_0.mask", 20241121, "B", [n % 3 > 0 for n in range(2000)])
write("bare/y.bin", 20240520, "H", text[8000:12000])
shards = [{"name": f"x_{split}_0.bin", "split": split, "tokens": tokens, "mask": {"name": f"x_{split}_0.mask"}}
          for split, tokens in (("train", 6000), ("val", 2000))]
manifest = {"format": "train_llama shards 1", "delimiter": {"place": "after", "token": "n", "id": 10}, "shards": shards}
pathlib.Path("chats/manifest.json").write_text(json.dumps(manifest))
END
sources=(web books chats)
mixture='web=web/*.txt@0.5, books=books/a\,b.txt@0.25,chats=chats@0.25'
held_out='web=web-val.txt,books=books-val.txt,chats=chats'
short=(--layers 1 --seq-len 16 --global-batch 8 --micro-batch 2 --sample-every 0)
options=("${short[@]}" --steps 12 --val-every 6 --val-tokens 256 --checkpoint-every 6 --train-data "$mixture" --val-data "$held_out")

echo "-- on 1, 2 and 4 ranks, and over a resume"
run one 1
check "the banner tells each source, its share and its epochs" eval \
  'says one "web, 50%: 40.0k tokens of web/*.txt (2 files), byte by byte" && says one "books, 25%: 9.00k tokens of books/a,b.txt" &&
   says one "chats, 25%: 6.00k tokens of chats/*_train_*.bin, whose masks say what is learnt" &&
   says one "web, an epoch: 2500 sequences, each token once; the run: 0.0192 epochs" &&
   says one "chats, an epoch: 375 sequences, each token once; the run: 0.064 epochs"'
check "  and each source's held-out data" says one "held out of chats: 2.00k tokens, of which 256 are measured (--val-tokens): chats/*_val_*.bin"
check "each step's line tells the losses of the sources" grep -q '^step *3/12 | loss [0-9.]* (web [0-9.]*, books [0-9.]*, chats [0-9.]*) | norm' one.txt
while read -r name n words; do
  # shellcheck disable=SC2086  # the last field holds several words
  run "$name" "$n" $words
  check "$name: the losses of the steps" near one "$name" 12 1e-5 1e-4
  for source in "${sources[@]}"; do
    key=loss.$source check "  those of $source" near one "$name" 12 1e-5 1e-4
    key=val_loss.$source check "  its held-out losses" near one "$name" 3 1e-5 1e-4
  done
done <<'END'
two 2
four 4 --zero-stage 3
tensor 2 --tensor-parallel-degree 2
context 2 --context-parallel-degree 2
END
run graphs 1 --cuda-graphs
check "with graphs: the same bits" same one graphs
resume again 1 "$(checkpoint one 6)"
check "after a resume: the same bits" ends_alike one again 8
resume again2 2 "$(checkpoint one 6)"
check "  on two ranks" near one again2 6 1e-5 1e-4
resume again3 1 "$(checkpoint two 6)"
check "  on fewer ranks" near one again3 6 1e-4 1e-4

echo "-- held-out losses"
# held_out_loss TEXT: the loss that is printed.
held_out_loss() { sed -n 's/^held-out loss \([0-9.]*\) .*/\1/p' "$1"; }
last() { numbers one "$1" | tail -n 1 | awk '{ printf "%.4f\n", $2 }'; }
eval_only() { "$train" --model one --eval-only --quiet --seq-len 16 --micro-batch 2 --val-tokens 256 --val-data "$1" >measured.txt 2>&1; }
while IFS='|' read -r source files; do
  eval_only "$files"
  check "--eval-only of $source: $(last "val_loss.$source")" [ "$(held_out_loss measured.txt)" = "$(last "val_loss.$source")" ]
done <<'END'
web|web-val.txt
books|books-val.txt
chats|chats/x_val_0.bin
END
eval_only "$held_out"
check "of all sources together: $(last val_loss)" [ "$(held_out_loss measured.txt)" = "$(last val_loss)" ]
check "  and each one's" grep -q "^  of web $(last val_loss.web), books $(last val_loss.books), chats $(last val_loss.chats)$" measured.txt
eval_only 'web=web-val.txt,books=books-val.txt'
all=$(held_out_loss measured.txt)
check "two sources of as many labels: their loss is the mean" awk "BEGIN { d = $all - ($(last val_loss.web) + $(last val_loss.books)) / 2; exit !(d * d < 1.1e-8) }"

echo "-- what a run that goes on may not change"
while IFS='|' read -r what data text n; do
  refused "$what, $n rank(s)" "the training data is not what it was: $text" \
    ranks "$n" "$train" --resume "$(checkpoint one 6)" --train-data "$data" --out refused </dev/null
done <<'END'
other shares|web=web/*.txt@0.4,books=books/a\,b.txt@0.35,chats=chats@0.25|it is web 0.4, books 0.35, chats 0.25, and was web 0.5, books 0.25, chats 0.25|1
other shares|web=web/*.txt@2,books=books/a\,b.txt@3,chats=chats@3|it is web 0.25, books 0.375, chats 0.375, and was|2
another order|books=books/a\,b.txt@1,web=web/*.txt@2,chats=chats@1|it is books 0.25, web 0.5, chats 0.25, and was web|1
other files|web=web/*.txt@2,books=halves/*@1,chats=chats@1|of the source books: it has 2 files, and there were 1|1
END
head -c 55000 web/1.txt web/2.txt books/a,b.txt chats/x_train_0.bin -q | head -c 55000 >alike.txt
refused "as many tokens without sources" "the training data is not what it was: it is no mixture, and was web 0.5" \
  "$train" --resume "$(checkpoint one 6)" --train-data alike.txt --val-data web-val.txt --out refused
resume moved 1 "$(checkpoint one 6)" --train-data 'web=web/*.txt@50,books=books/a*@25.0,chats=chats/*_train_*.bin@25' --steps 7
check "the same shares and files in other words: it goes on" says moved "step 7/7"
check "  the shares are told" says moved "the shares add up to 100, and are taken in proportion to that"

echo "-- one source is as data that is no mixture"
options=("${short[@]}" --val-every 2)
run plain 1 --train-data web/1.txt --steps 4
run named 1 --train-data 'x=web/1.txt@1' --steps 4
check "losses" diff <(losses plain/train.jsonl) <(losses named/train.jsonl)
check "weights" same_weights plain named
run rest 1 --train-data 'x=web/1.txt@1,y=bare/y.bin@1' --steps 1
check "without --val-data the last tenth of a text is held out, of shards nothing" eval \
  'says rest "held out of x: 2.00k tokens" && says rest "nothing is held out of y:" && says rest "x, 50%: 18.0k tokens"'
plan() { sed -n "s/^ *$1 *\([0-9.]* [KMG]*i*B\)$/\1/p" "$2.txt" | head -n 1; }
check "one source needs no memory for sources" [ "$(plan batch plain)$(plan state plain)" = "$(plan batch named)$(plan state named)" ]
check "  several do: $(plan batch plain) and $(plan batch rest) of tokens" [ "$(plan batch plain)" != "$(plan batch rest)" ]

echo "-- documents, masks, tokenizers"
run packed 1 --train-data 'chats=chats@1,web=web/1.txt@1,bare=bare/y.bin@2' --packed-documents --steps 2
check "each source has its own rule" eval 'says packed "what is learnt; packed documents, each ends with token 10" && says_not packed "web/1.txt, byte by byte; packed"'
check "  sources without one are told" says packed "--packed-documents changes nothing of the source bare: no token is known to begin a document of bare/y.bin"
check "  what is learnt of the masks is told" says packed "source chats: learns "
refused "no source has documents" "no token is known to begin a document of web/1.txt: it would change nothing" \
  "$train" "${short[@]}" --dry-run --packed-documents --train-data 'web=web/1.txt@1,bare=bare/y.bin@2'
run whole 1 --train-data "$mixture" --check-data --dry-run
check "--check-data reads all sources" says whole "checked 57.0k tokens and their masks in 5 files"
refused "a step that is not finite: the file of the source that its first sequence is from" "of web/2.txt" \
  "$train" "${short[@]}" --quiet --val-every 0 --steps 3 --warmup-steps 0 --lr 1e30 --train-data 'small=web/1.txt@1,large=web/2.txt@3' --out infinite
tokenizer=$root/dev/test/tokenizers/llama3.json
run tokens 1 --tokenizer "$tokenizer" --cache cache --train-data 'web=web/*.txt@3,books=books/a\,b.txt@1' --steps 1
check "texts of several sources are tokenized" eval 'says tokens "books/a,b.txt: text, cut into" && says tokens "web/*.txt: text, cut into"'

run unpaired 1 --train-data 'web=web/1.txt@1,books=web/2.txt@1' --val-data 'web=web/2.txt,boks=web/1.txt' --dry-run
check "a source of which nothing is held out is named" says unpaired "nothing is held out of books:"
check "  and a held-out one that is no source of the training" says unpaired "no source of the training is named boks"

echo "-- what is refused"
while IFS='|' read -r what data text; do
  refused "$what" "$text" "$train" "${short[@]}" --dry-run --train-data "$data"
done <<'END'
a name twice|a=web/1.txt@1,a=web/2.txt@1|the source a is named twice
no share|a=web/1.txt@1,b=web/2.txt|the source b has no share
a share of 0|a=web/1.txt@1,b=web/2.txt@0|the source b has the share 0
a source without files|a=web/1.txt@1,b=nothing/*.txt@1|nothing matches 'nothing/*.txt'
END
head -c 12 web/1.txt >small.txt
refused "a source smaller than a sample" "source b: no sequence of 16 tokens and a label fits: the data has 11 tokens" \
  "$train" "${short[@]}" --dry-run --train-data 'a=web/1.txt@1,b=small.txt@1'
refused "shares of held-out data" "the source a has the share 0.5" \
  "$train" "${short[@]}" --dry-run --train-data web/1.txt --val-data 'a=web/2.txt@0.5'
echo "$checks checks passed"
