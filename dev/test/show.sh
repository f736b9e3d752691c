#!/usr/bin/env bash
# Covers: dev/bench/show trains what is missing and goes on where it stopped; promise 4: its run that is killed and resumed has
# the hash of the one that is left alone; it says what failed and what had no time; its tables say which runs no GPU has done
# Timeout: 200
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
export LLMC_THREADS=1
batch_order=$build/bench/batch_order # what show calls
show() { "$root/dev/bench/show" "$1" --folder "$scratch/show" "${@:2}"; }
results=$scratch/show/small/results

[ -x "$batch_order" ] || fail "$batch_order is not there"
check "without time nothing is run, and the code is 3" exits 3 show run --small --program "$train" --seconds 0.1 bf16 fp8-delayed
check "  it says what is missing" said "missing, for 0.1 s are not enough: bf16 fp8-delayed"
check "two runs, one of them killed" exits 0 show run --small --program "$train" bf16 bf16-killed
show table --small >"$scratch/table.txt"
check "  have one hash" grep -q '| one hash |' "$scratch/table.txt"
check "  and so have their result files" [ "$(cat "$results"/bf16*/result.json | grep -c "$(grep -oE '[0-9a-f]{64}' "$results/bf16/result.json")")" = 2 ]
check "  with the command" grep -q '"command": ".*train_llama --model .*--steps 40' "$results/bf16/result.json"
check "  it is called a rehearsal" grep -q 'A rehearsal' "$scratch/table.txt"
check "  the others are said to be missing" [ "$(grep -c 'not yet run on a GPU' "$scratch/table.txt")" = 5 ]
check "  a row has speed, losses, held-out loss" grep -qE '^\| bf16 \| [0-9,]+ \| 1\.00 (\| [0-9]\.[0-9]{4} ){5}\| \+0\.00% \|$' "$scratch/table.txt"
check "  pictures" grep -q "<polyline" "$scratch/show/small/show.svg"
check "what is there is not run again" exits 0 show run --small --program "$train" --seconds 0.1 bf16 bf16-killed
check "  it says so" said "bf16: is there already" "bf16-killed: is there already"
sed -i 's/"sha256": "./"sha256": "x/; s/"device": "/"device": "another than /' "$results/bf16-killed/result.json"
show table --small >"$scratch/table.txt"
check "other bits are two hashes, of which the table says how the runs differ" grep -q '| \*\*two hashes\*\*; the runs differ in device |' "$scratch/table.txt"

# Two ranks, and a PyTorch that is none: it writes what pytorch_train.py writes.
cat >"$scratch/python" <<'END'
#!/usr/bin/env bash
while [ "$1" != --log ]; do shift; done
for step in $(seq 40); do echo "{\"step\": $step, \"loss\": 3.5}"; done >"$2"
for step in 10 20 30 40; do echo "{\"step\": $step, \"val_loss\": 3.25}"; done >>"$2"
printf 'pytorch 0: no PyTorch\npytorch: 12345 tok/s\n'
END
chmod +x "$scratch/python"
check "two ranks, and PyTorch" exits 0 show run --small --program "$train" --python "$scratch/python" fp8-gather pytorch
show table --small >"$scratch/table.txt"
check "  PyTorch's row" grep -qE '^\| PyTorch, bf16, compiled \| 12,345 \| [0-9.]+ (\| 3\.5000 ){4}\| 3\.2500 \| [-+][0-9.]+% \|$' "$scratch/table.txt"
check "  and their distances from bf16" grep -q "<polyline" "$scratch/show/small/show_against_bf16.svg"
check "  two ranks have no speed" grep -qE '^\| FP8 tensorwise, two ranks.* \| two ranks share the GPU \| – (\| [0-9]\.[0-9]{4} ){5}\|' "$scratch/table.txt"

printf '#!/bin/sh\necho "error: no such luck" && exit 1\n' >"$scratch/broken"
chmod +x "$scratch/broken"
check "a run that fails: code 1" exits 1 show run --small --program "$scratch/broken" fp8-tensorwise pytorch
check "  with its last words" said "failed: exit code 1" "error: no such luck" "pytorch: is there already" "failed: fp8-tensorwise"
check "  has no result" not test -e "$results/fp8-tensorwise"
refused "the whole size without its data" "order.safetensors is not there: dev/bench/show prepare writes it" show run --program "$train"
refused "an unknown run" "there is no run bf17" show run --small --program "$train" bf17
check "the whole table" exits 0 show table
check "  says that no GPU has run it" [ "$(grep -c 'not yet run on a GPU' "$scratch/out.txt")" = 8 ]
echo "$checks checks passed"
