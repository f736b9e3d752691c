#!/usr/bin/env bash
# Covers: data that is not what it should be: documents that nothing tells apart; masks and shards that the manifest lists and that are gone, before a start; masks,
# shards, contents and held-out data that were swapped before a resume: each told or refused, on one rank and on two
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
cat >write.py <<'END'
"""write.py FOLDER SEED [masks]: shards of bytes as dev/data/prepare writes them: 5 of 3000 tokens to train on, one held out."""
import hashlib, json, pathlib, random, struct, sys
folder, seed, masks = pathlib.Path(sys.argv[1]), int(sys.argv[2]), "masks" in sys.argv
folder.mkdir()
shards = []
for number in range(6):
    numbers, split = random.Random(f"{seed} {number}"), "train" if number else "val"
    path = folder / f"x_{split}_{number:06d}.bin"
    def write(path, magic, data):
        path.write_bytes(struct.pack("<3i", magic, 1, 3000).ljust(1024, b"\0") + data)
        return hashlib.sha256(path.read_bytes()).hexdigest()
    entry = {"name": path.name, "split": split, "tokens": 3000}
    entry["sha256"] = write(path, 20240520, struct.pack("<3000H", *(numbers.randrange(97, 123) for _ in range(3000))))
    if masks:
        mask = path.with_suffix(".mask")
        entry["mask"] = {"name": mask.name, "learnt": 2000, "sha256": write(mask, 20241121, b"\1\1\0" * 1000)}
    shards.append(entry)
manifest = {"format": "train_llama shards 1", "delimiter": None, "shards": shards}
(folder / "manifest.json").write_text(json.dumps(manifest))
END
short=(--layers 1 --seq-len 16 --global-batch 2 --val-every 0 --sample-every 0 --export off)
data=(--train-data 'data/x_train_*.bin' --val-data 'data/x_val_*.bin')

echo "-- what the manifest lists, and what is there"
python3 write.py data 1 masks
options=("${short[@]}")
run whole 1 --dry-run "${data[@]}"
check "all shards and masks: no warning" eval '! grep -q "^warning: [0-9]* of the" whole.txt'
mkdir part && cp data/manifest.json data/x_train_00000[145].* data/x_val* part
for n in 1 2; do
  tells "two of five shards are gone: told, $n rank(s)" "warning: 2 of the 5 train shards that part/manifest.json lists are not there: x_train_000002.bin, x_train_000003.bin" \
    run part $n --dry-run --train-data 'part/*train*.bin' --val-data 'part/*val*.bin'
done
rm part/*.mask
for n in 1 2; do
  refused "the masks are gone, $n rank(s)" "part/x_train_000001.bin has no mask, and " \
    ranks $n "$train" --dry-run "${short[@]}" --train-data 'part/*train*.bin'
done
mkdir bare && cp data/x_train_000001.bin bare && printf '\1' | dd of=bare/x_train_000001.bin bs=1 seek=12 conv=notrunc status=none
refused "a shard that was written with a mask, without mask and manifest" "bare/x_train_000001.mask is not there" \
  "$train" --dry-run "${short[@]}" --train-data 'bare/*.bin'

echo "-- packed documents that nothing tells apart"
printf 'a\nb\n%.0s' {1..500} >lines.txt
tr '\n' ' ' <lines.txt >words.txt
packed=("$train" "${short[@]}" --packed-documents --document-token 10)
for n in 1 2; do
  refused "the token is not in the training data, $n rank(s)" "--packed-documents: token 10, which should begin each document, is not among" \
    ranks $n "${packed[@]}" --dry-run --train-data words.txt --val-data lines.txt
done
refused "  in all that is measured" "remove --packed-documents" "${packed[@]}" --eval-only --val-data words.txt
tells "  in the held-out data alone: told" "warning: --packed-documents changes nothing of the held-out loss: token 10," run packed 1 --packed-documents --document-token 10 --dry-run --train-data lines.txt --val-data words.txt

echo "-- swapped before a resume"
# change WHAT FOLDER: what was done to the data meanwhile.
change() {
  case $1 in
    contents) python3 write.py other 2 && mv other/*_train_*.bin "$2" ;;
    one-token) printf b | dd of="$2/x_train_000003.bin" bs=1 seek=3000 conv=notrunc status=none ;;
    order) mv "$2/x_train_000002.bin" "$2/t" && mv "$2/x_train_000004.bin" "$2/x_train_000002.bin" && mv "$2/t" "$2/x_train_000004.bin" ;;
    cut) python3 -c '
import struct, sys
a, b = (open(f"{sys.argv[1]}/x_train_00000{i}.bin", "rb").read()[1024:] for i in (1, 2))
for i, part in enumerate((a[:-200], a[-200:] + b), 1):
    open(f"{sys.argv[1]}/x_train_00000{i}.bin", "wb").write(struct.pack("<3i", 20240520, 1, len(part) // 2).ljust(1024, b"\0") + part)
' "$2" ;;
    joined) python3 -c '
import struct, sys
a, b = (open(f"{sys.argv[1]}/x_train_00000{i}.bin", "rb").read()[1024:] for i in (1, 2))
open(f"{sys.argv[1]}/x_train_000001.bin", "wb").write(struct.pack("<3i", 20240520, 1, 6000).ljust(1024, b"\0") + a + b)
' "$2" && rm "$2/x_train_000002.bin" ;;
    mask) python3 write.py other 1 masks && cp other/*_train_*.mask "$2" ;;
    mask-gone) rm "$2"/*.mask ;;
    other-mask) printf '\0' | dd of="$2/x_train_000003.mask" bs=1 seek=2000 conv=notrunc status=none ;;
    held-out) python3 write.py other 2 && mv other/*_val_*.bin "$2" ;;
    more-held-out) cp "$2/x_val_000000.bin" "$2/x_val_000001.bin" ;;
    nothing) : ;;
  esac
  rm -rf other
}
# begun NAME FOLDER: two steps of training on one rank, with a checkpoint.
begun() { run "$1" 1 --train-data "$2/x_train_*.bin" --val-data "$2/x_val_*.bin" --steps 2 --checkpoint-every 2; }
python3 write.py plain 1
begun plain-run plain
begun masked-run data
# on: one step more, with the data in `here`.
on=(--out on --steps 3 --train-data 'here/x_train_*.bin' --val-data 'here/x_val_*.bin')
while IFS='|' read -r what run text counts; do
  if [ "$run" = masked ]; then from=data; else from=plain; fi
  rm -rf here && cp -r "$from" here && rm -f here/manifest.json
  change "$what" here
  for n in $counts; do
    refused "$what, $n rank(s)" "the training data is not what it was: $text" \
      ranks "$n" "$train" --resume "$(checkpoint "$run-run" 2)" "${on[@]}" </dev/null
  done
done <<'END'
contents|plain|x_train_000001.bin has other tokens|1
one-token|plain|x_train_000003.bin has other tokens|1 2
order|plain|x_train_000002.bin has other tokens|1
cut|plain|x_train_000001.bin has another number of tokens|1
joined|plain|it has 4 files, and there were 5|1
mask|plain|it has masks, and had none|1
mask-gone|masked|its masks are gone: every token is learnt|1
other-mask|masked|the mask of x_train_000003.bin is another|1 2
END
check "none of these began a run" [ ! -e on ]
while IFS='|' read -r what n text; do
  rm -rf here on && cp -r plain here
  change "$what" here
  tells "$what, $n rank(s): it goes on, and $text" "$text" resume on "$n" "$(checkpoint plain-run 2)" "${on[@]:2}"
done <<'END'
held-out|1|the held-out data is not what it was: x_val_000000.bin has other tokens
held-out|2|the held-out data is not what it was: x_val_000000.bin has other tokens
more-held-out|1|the held-out data is not what it was: it has 2 files, and there were 1
nothing|2|step 3/3
END
check "the same data in another folder: no word of it" says_not on "not what it was"

echo "-- the rule of the documents"
rule() { sed "s/\"delimiter\": null/\"delimiter\": {\"place\": \"after\", \"token\": \"n\", \"id\": $2}/" plain/manifest.json >"$1/manifest.json"; } # FOLDER TOKEN
rm -rf here && cp -r plain ends && rule ends 110 && cp -r plain here && rm here/manifest.json
packed=(--packed-documents on --lr 1e-2 --steps 4)
run packed-run 1 "${packed[@]}" --train-data 'ends/x_train_*.bin' --val-data 'ends/x_val_*.bin' --checkpoint-every 2
on=(--train-data 'here/x_train_*.bin' --val-data 'here/x_val_*.bin')
for n in 1 2; do
  tells "without its manifest, $n rank(s): as it was" "packed documents, each ends with token 110" resume bare$n $n "$(checkpoint packed-run 2)" "${on[@]}"
  check "  with the same losses" near packed-run bare$n 2 1e-5 1e-5
done
check "  to the last bit" cmp <(losses packed-run/train.jsonl | tail -n 2) <(losses bare1/train.jsonl)
refused "another token" "each document begins with token 112, and where the run began each ends with token 110" \
  "$train" --resume "$(checkpoint packed-run 2)" "${on[@]}" --document-token 112 --out refused
rule here 112
refused "another manifest" "the training data is not what it was: each document ends with token 112" \
  "$train" --resume "$(checkpoint packed-run 2)" "${on[@]}" --out refused
tells "of the held-out data: told" "the held-out data is not what it was: each document ends with token 112" resume other-held-out 1 "$(checkpoint packed-run 2)" --val-data 'here/x_val_*.bin'

echo "-- what a checkpoint says is kept"
cp on/checkpoints/step-00000003/state.json state.json 2>/dev/null || { find on && fail "no checkpoint of the resumed run"; }
identity() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["data_identity"])' "$1"; }
check "the resumed run's checkpoint names the same data" cmp <(identity state.json) <(identity plain-run/checkpoints/step-00000002/state.json)
rm -rf here on && cp -r plain here
tells "how much is measured may change" '--val-tokens 100 (was 16)' resume on 1 "$(checkpoint plain-run 2)" --steps 3 "${on[@]}" --val-tokens 100
echo "$checks checks passed"
