#!/usr/bin/env bash
# Covers: data that is not what it was: masks and shards that the manifest lists and that are gone, before a start; masks,
# shards, contents and held-out data that were swapped before a resume: each told or refused, on one rank and on two
# Timeout: 120
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
says() { grep -qF -- "$2" "$1" || { cat "$1" && return 1; }; }

echo "-- what the manifest lists, and what is there"
python3 write.py data 1 masks
for n in 1 2; do
  ranks $n "$train" --dry-run "${short[@]}" "${data[@]}" >whole.txt
  check "$n rank(s): all shards and masks: no warning" eval '! grep -q "^warning: [0-9]* of the" whole.txt'
  mkdir part && cp data/manifest.json data/x_train_00000[145].* data/x_val* part
  ranks $n "$train" --dry-run "${short[@]}" --train-data 'part/*train*.bin' --val-data 'part/*val*.bin' >part.txt
  check "  two of five shards are gone: told" says part.txt \
    "warning: 2 of the 5 train shards that part/manifest.json lists are not there: x_train_000002.bin, x_train_000003.bin"
  rm part/*.mask
  refused "  the masks are gone" "part/x_train_000001.bin has no mask beside it" \
    ranks $n "$train" --dry-run "${short[@]}" --train-data 'part/*train*.bin'
  rm -r part
done
echo "$checks checks passed"
