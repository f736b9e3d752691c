#!/usr/bin/env bash
# Covers: dev/bench/show trains what is missing and goes on where it stopped; promise 4: its run that is killed and resumed has
# the hash of the one that is left alone; it says what failed and what had no time; its tables say which runs no GPU has done
# Programs: bench/batch_order
# Timeout: 200
# Turn: 2
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
# shellcheck source=dev/test/stopping.bash
source "$root/dev/test/stopping.bash"
export LLMC_THREADS=1
show() { "$root/dev/bench/show" "$1" --folder "$scratch/show" "${@:2}"; }
results=$scratch/show/small/results

table() { show table --small >"$scratch/table.txt"; }
in_table() { check "$1" grep -qE "${@:2}" "$scratch/table.txt"; }
hash_of() { grep -oE '[0-9a-f]{64}' "$results/$1/result.json"; }
a_loss='[0-9]\.[0-9]{4}'

check "without time nothing is run, and the code is 3" exits 3 show run --small --program "$train" --seconds 0.1 bf16 fp8-delayed
check "  it says what is missing" said "missing, for 0.1 s are not enough: bf16 fp8-delayed"
stopping_trainer "$scratch/show/small/model.json" # which is there now
export LLMC_COMMIT=0a1b2c3
check "two runs, one of them killed" exits 0 show run --small --program "$stopping" bf16 bf16-killed
unset LLMC_COMMIT
table
in_table "  have one hash" '\| one hash \|'
check "  and so have their result files" [ "$(hash_of bf16)" = "$(hash_of bf16-killed)" ]
check "  with the command" grep -q '"command": ".*train_llama --model .*--steps 40' "$results/bf16/result.json"
check "  with the script that kills" grep -q '"command": .*by: dev/bench/show run bf16-killed' "$results/bf16-killed/result.json"
check "  with the commit" grep -q '"commit": "0a1b2c3"' "$results/bf16/result.json"
in_table "  it is called a rehearsal" 'A rehearsal'
check "  the others are said to be missing" [ "$(grep -c 'not yet run on a GPU' "$scratch/table.txt")" = 5 ]
in_table "  a row has speed, losses, held-out loss" "^\| bf16 \| [0-9,]+ \| 1\.00 (\| $a_loss ){5}\| \+0\.00% \|$"
check "  pictures" grep -q "<polyline" "$scratch/show/small/show.svg"
check "what is there is not run again" exits 3 show run --small --program "$train" --seconds 0.1
check "  it says so" said "bf16: is there already" "bf16-killed: is there already" "not enough: fp8-tensorwise fp8-delayed pytorch"
check "  unless it is named" exits 3 show run --small --program "$train" --seconds 0.1 bf16
sed -i 's/"sha256": "./"sha256": "x/; s/"device": "/"device": "another than /' "$results/bf16-killed/result.json"
check "another machine's result is none" exits 3 show run --small --program "$train" --seconds 0.1
check "  it says so" said "bf16-killed: the result there is of another than a CPU, not of a CPU" "pytorch bf16-killed fp8-gather"
table
in_table "other bits are two hashes, and the table says how the runs differ" '\| \*\*two hashes\*\*; the runs differ in device \|'
cp -r "$results/bf16" "$results/fp8-delayed"
sed -i '/"step":40,/s/"\(val_\)\?loss":[0-9.]*/"\1loss":"nan"/' "$results/fp8-delayed/train.jsonl"
table
in_table "losses that are not numbers" "^\| FP8 delayed \| [0-9,]+ \| 1\.00 (\| $a_loss ){3}\| nan \| nan \| \+nan% \|$"

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
table
in_table "  PyTorch's row" '^\| PyTorch, bf16, compiled \| 12,345 \| [0-9.]+ (\| 3\.5000 ){4}\| 3\.2500 \| [-+][0-9.]+% \|$'
check "  and their distances from bf16" grep -q "<polyline" "$scratch/show/small/show_against_bf16.svg"
in_table "  two ranks have no speed" "^\| FP8 tensorwise, two ranks.* \| two ranks share the GPU \| – (\| $a_loss ){5}\|"

# program NAME COMMANDS: a trainer that does this.
program() {
  mkdir -p "${1%/*}" && printf '#!/bin/sh\n%s\n' "$2" >"$1" && chmod +x "$1"
}
program "$scratch/cpu/broken" 'echo "error: no such luck" && exit 1'
check "a run that fails: code 1" exits 1 show run --small --program "$scratch/cpu/broken" fp8-tensorwise
check "  with its last words" said "failed: exit code 1" "error: no such luck" "failed: fp8-tensorwise"
check "a check whose training fails: code 1" exits 1 show check --small --program "$scratch/cpu/broken"
check "  with its last words" said "show: exit code 1" "error: no such luck"
program "$scratch/cpu/endless" 'sleep 100'
check "a run that --seconds cuts is missing" exits 3 show run --small --program "$scratch/cpu/endless" --seconds 3 fp8-tensorwise
check "  it says so" said "cut: not done after " "missing, for 3 s are not enough: fp8-tensorwise"
check "  has no result" not test -e "$results/fp8-tensorwise"
program "$scratch/cuda/broken" true
refused "a program for a GPU without one" "nvidia-smi names no GPU, but $scratch/cuda/broken is built for one" \
  env CUDA_VISIBLE_DEVICES=-1 "$root/dev/bench/show" run --small --program "$scratch/cuda/broken"
refused "no time" "--seconds 0: expected more than 0" show run --small --program "$train" --seconds 0
refused "the whole size without its data" "order.safetensors is not there: dev/bench/show prepare writes it" \
  show run --program "$train"
refused "an unknown run" "there is no run bf17" show run --small --program "$train" bf17
check "the whole table" exits 0 show table
check "  says that no GPU has run it" [ "$(grep -c 'not yet run on a GPU' "$scratch/out.txt")" = 8 ]

# What show does with two ranks on a CPU: they end with the script, in less time than gpu_check leaves it, in the midst of a step,
# which takes an hour.
cat >"$scratch/endless.py" <<'END'
import sys
sys.path.insert(0, sys.argv[1] + "/dev/bench")
from training import finish, heed_signals, start
heed_signals()
root, out, program = sys.argv[1:]
command = [root + "/scripts/run", "-n", 2, "--model", "tiny", "--steps", 9, "--seq-len", 512, "--global-batch", 65536,
           "--val-every", 0, "--export", "off", "--checkpoint-on-signal", "off", "--out", out]
with open(out + ".log", "w+") as log:
    print("begins", flush=True)
    finish([start(command, log, LLMC_PROGRAM=program)], log, 1000, stops=True)
END
begin endless begins python3 "$scratch/endless.py" "$root" "$scratch/endless" "$train"
wait_for "$scratch/endless/run.json" "{"
kill -TERM "$child"
check "a script that is asked to end does so in 5 s, or 10 on a busy machine" ends 10
check "  with code 143" [ "$code" = 143 ]
# mpirun may have been killed before it had ended its ranks, which notice that by themselves. Their step takes an hour.
ranks_end() {
  for _ in $(seq 600); do
    pgrep -f -- "--out $scratch/endless" >/dev/null || return 0
    sleep 0.1
  done
  return 1
}
check "  and its ranks end, too" ranks_end
echo "$checks checks passed"
