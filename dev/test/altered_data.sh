#!/usr/bin/env bash
# Covers: shards, masks and a text's cached tokens that were altered after they were written: noticed where they are read, and
# all of them by --check-data, by the checksums of blocks or, of older manifests, of whole files
# Timeout: 100
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
head -c 60000 "$root/dev/data/tinyshakespeare.txt" >text.txt
cp "$root/dev/test/tokenizers/llama3.json" .
trains=("$train" --layers 1 --seq-len 32 --global-batch 64 --steps 1 --val-every 0 --sample-every 0 --export off --vocab-size 1514 --tokenizer llama3.json)
flip() { # FILE BYTE: its lowest bit
  python3 -c '
import sys
with open(sys.argv[1], "r+b") as f:
    f.seek(int(sys.argv[2])); byte = f.read(1)[0] ^ 1
    f.seek(int(sys.argv[2])); f.write(bytes([byte]))' "$1" "$2"
}

echo "-- a text's tokens"
exits_0() { "$@" >log 2>&1 || { cat log && return 1; }; }
check "a text trains" exits_0 "${trains[@]}" --train-data text.txt --out first
shard=$(ls cache/*/text_000001.bin)
cp -r "$(dirname "$shard")" shards && rm shards/made_of.json # the same as shards
flip "$shard" 9000
for n in 1 2; do
  refused "a token of them was altered, $n rank(s)" "$shard was altered or damaged: its bytes 0 to " ranks $n "${trains[@]}" --train-data text.txt --out second
  check "  what to do" grep -q "remove the folder $(dirname "$shard"): the next run cuts the text again" refused
done
refused "  also when only a validation reads it" "was altered or damaged" \
  "$train" --eval-only --seq-len 32 --layers 1 --vocab-size 1514 --tokenizer llama3.json --cache cache --val-data text.txt
rm -r "$(dirname "$shard")"
check "  which helps" exits_0 "${trains[@]}" --train-data text.txt --out third

echo "-- shards"
data=(--train-data 'shards/*.bin')
check "shards with their checksums" exits_0 "${trains[@]}" "${data[@]}" --check-data --out fourth
flip shards/text_000001.bin 2001
refused "an altered one, when it is read" "text_000001.bin was altered or damaged" "${trains[@]}" "${data[@]}" --out fifth
check "  what to do" grep -q "fetch it again, or write it again with dev/data/prepare" refused
check "  not before" exits_0 "${trains[@]}" "${data[@]}" --dry-run
for n in 1 2; do
  refused "  by --check-data, $n rank(s)" "text_000001.bin was altered or damaged" ranks $n "${trains[@]}" "${data[@]}" --check-data --dry-run
done
older() { # KEEP_SHA256: the manifest as an older program wrote it
  python3 - "$1" <<'END'
import hashlib, json, pathlib, sys
path = pathlib.Path("shards/manifest.json")
manifest = json.loads(path.read_text())
manifest.pop("xxh64_block_bytes", None)
for shard in manifest["shards"]:
    shard.pop("xxh64", None)
    if sys.argv[1] == "sha256":
        shard["sha256"] = hashlib.sha256(pathlib.Path("shards", shard["name"]).read_bytes()).hexdigest()
path.write_text(json.dumps(manifest))
END
}
older none
check "a manifest without checksums: as before" exits_0 "${trains[@]}" "${data[@]}" --check-data --out sixth
older sha256
check "one of an older program" exits_0 "${trains[@]}" "${data[@]}" --check-data --out seventh
flip shards/text_000001.bin 2001
check "  a start reads no whole file" exits_0 "${trains[@]}" "${data[@]}" --out eighth
for n in 1 2; do
  refused "  but --check-data does, $n rank(s)" "text_000001.bin was altered or damaged: its sha256 is not" \
    ranks $n "${trains[@]}" "${data[@]}" --check-data --dry-run
done
echo "$checks checks passed"
