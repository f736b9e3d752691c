#!/usr/bin/env bash
# Covers: promise 1: PyTorch trains on the initial weights, batches, labels and learning rates of a run of ours: twelve losses
# in fp32 agree to rounding, and with another seed they do not; a whole run of PyTorch, in bf16 and FP8, has a row in show's table
# Programs: bench/batch_order
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
show() { "$root/dev/bench/show" "$1" --folder "$scratch/show" --small "${@:2}"; }
ours=(--program "$train" --python "$PYTHON")

check "the first losses are PyTorch's" exits 0 show check "${ours[@]}"
tail -n 1 "$scratch/out.txt"
check "another seed is seen" exits 1 show check "${ours[@]}" --ours '{"seed": 2}'
check "  by the losses" said "FAIL the losses differ by at most"
check "another learning rate is seen" exits 1 show check "${ours[@]}" --ours '{"warmup-steps": 3}'
check "  by the losses" said "FAIL the losses differ by at most"
check "PyTorch in bf16 and FP8" exits 0 show run "${ours[@]}" bf16 pytorch pytorch-fp8
show table >"$scratch/table.txt"
row='^\| (PyTorch.* compiled|bf16) \| [0-9,]+ \| [0-9.]+ (\| [0-9]\.[0-9]{4} ){5}'
check "  rows" [ "$(grep -cE "$row" "$scratch/table.txt")" = 3 ]
# The same steps in other roundings: the losses differ by less than the last quarter of the steps changes ours.
as_ours() {
  "$PYTHON" - "$scratch/show/small/results" <<'END'
import json, sys
def held_out(name):
    lines = map(json.loads, open(f"{sys.argv[1]}/{name}/train.jsonl"))
    return {line["step"]: line["val_loss"] for line in lines if "val_loss" in line}
ours, theirs = held_out("bf16"), [held_out(name)[40] for name in ("pytorch", "pytorch-fp8")]
print("    ", theirs, "ours", ours)
sys.exit(not all(abs(loss - ours[40]) < ours[30] - ours[40] for loss in theirs))
END
}
check "  held-out losses as ours" as_ours

# Six epochs of two small shards: sequences that go on at the data's beginning, and some that have fewer tokens.
"$PYTHON" - "$scratch" "$root/dev/data/tinyshakespeare.txt" <<'END'
import struct, sys
text = open(sys.argv[2], "rb").read()
for name, tokens in (("a", text[:700]), ("b", text[700:1111]), ("held", text[5000:5200])):
    header = struct.pack("<256i", 20240520, 1, len(tokens), *[0] * 253)
    open(f"{sys.argv[1]}/{name}.bin", "wb").write(header + struct.pack(f"<{len(tokens)}H", *tokens))
END
data=(--train-data "$scratch/[ab].bin" --val-data "$scratch/held.bin")
shape=(--model "$scratch/show/small/model.json" "${data[@]}" --seq-len 64 --global-batch 8 --micro-batch 8 --dtype fp32
  --sample-every 0)
"$train" "${shape[@]}" --steps 1 --lr 1e-30 --val-every 0 --out "$scratch/weights" >/dev/null
options=("${shape[@]}" --steps 14 --val-every 14 --val-tokens 0 --export off)
"$build/bench/batch_order" "$scratch/order.safetensors" "${options[@]}"
run few 1
mkdir "$scratch/theirs"
"$PYTHON" "$root/dev/bench/pytorch_train.py" --config "$scratch/show/small/model.json" --weights "$scratch/weights/export" \
  --batches "$scratch/order.safetensors" "${data[@]}" --steps 14 --val-every 14 --log "$scratch/theirs.jsonl"
sed 's/: /:/g; s/, /,/g' "$scratch/theirs.jsonl" >"$scratch/theirs/train.jsonl"
check "shards of 1111 tokens, epoch after epoch: the same losses" near few theirs 14 2e-6 2e-6
key=val_loss check "  and held-out losses" near few theirs 2 2e-6 2e-6
echo "$checks checks passed"
