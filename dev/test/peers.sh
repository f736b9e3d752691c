#!/usr/bin/env bash
# Covers: dev/bench/peers: a call that is killed leaves whole rows, time that is short, a row that
# fails, figures of another machine, the tables
# Timeout: 200
# Programs: bench/train
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

small=(--small --build "$build" --results "$scratch/found.tsv")
rows=(llmq 8b llm.c) # all that need no PyTorch: 11
measured() { grep -cv '^#\|^row' "$scratch/found.tsv"; }
peers() { # CODE ARGUMENTS…: dev/bench/peers ends with this code
  local code=0
  dev/bench/peers "${@:2}" >"$scratch/out.txt" 2>&1 || code=$?
  [ "$code" = "$1" ] || { cat "$scratch/out.txt" && return 1; }
}

echo "-- a call that is killed, and the next"
begin killed "^ok   llmq/0.5b-fp8" dev/bench/peers "${small[@]}" "${rows[@]}"
kill -KILL -- "-$child"
wait "$child" 2>/dev/null || true
child=""
before=$(measured)
check "what was measured before the kill is there ($before rows)" [ "$before" -ge 2 ]
check "a call without time" peers 3 "${small[@]}" --seconds 1
check "  it says what is missing" grep -q "^not measured, for 1 s were too short: .*pytorch/1b-fp8$" "$scratch/out.txt"
check "the rows that need no PyTorch, by name" peers 0 "${small[@]}" "${rows[@]}"
check "  11 figures" [ "$(measured)" = 11 ]

echo "-- a row that fails"
mkdir -p "$scratch/broken/bench"
printf '#!/usr/bin/env bash\ncase $* in *"--fp8"*) echo "error: a product failed" >&2; exit 1 ;; esac\nexec %q "$@"\n' \
  "$build/bench/train" >"$scratch/broken/bench/train"
chmod +x "$scratch/broken/bench/train"
check "ends with 1" peers 1 --small --build "$scratch/broken" --results "$scratch/broken.tsv" 8b
check "  it says which, and the program's error" grep -q "^FAIL 8b/fp8: .*bench/train" "$scratch/out.txt"
check "    error: a product failed" grep -q "error: a product failed" "$scratch/out.txt"
check "  the other row is measured" grep -q "^8b/bf16" "$scratch/broken.tsv"

echo "-- figures of another machine, and tables"
sed 's/rehearsal in [a-z0-9-]*/NVIDIA H100/' "$scratch/found.tsv" >"$scratch/theirs.tsv"
check "--take" peers 0 --take "$scratch/theirs.tsv" --results "$scratch/kept.tsv"
check "  twice" peers 0 --take "$scratch/theirs.tsv" --results "$scratch/kept.tsv"
check "  adds each figure once" cmp "$scratch/theirs.tsv" "$scratch/kept.tsv"
check "the table of nothing" peers 0 --table measured --model-build "$build" --results "$scratch/none.tsv"
check "  says of 15 lines that no GPU has run them" [ "$(grep -c "no GPU has run it" "$scratch/out.txt")" = 15 ]
check "  and has the MFU of what was published" grep -q '| 14.5k | 2.16 | 75% (85%) | no GPU has run it |' "$scratch/out.txt"
check "the table of 11 figures" peers 0 --table measured --model-build "$build" --results "$scratch/kept.tsv"
check "  says so of PyTorch's two" [ "$(grep -c "no GPU has run it" "$scratch/out.txt")" = 2 ]
check "  and names the GPU" grep -q '^\*Ours: NVIDIA H100, driver' "$scratch/out.txt"
check "the predicted table of 8B" peers 0 8b --table predicted --model-build "$build" --results "$scratch/kept.tsv"
check "  has layers, predicted and measured times for each published figure" [ "$(grep -cE \
  '^\| (torchtitan|Megatron).* \| [0-9]+: [0-9.]+ \| [0-9]+: [0-9.]+ \| [0-9.]+ \([0-9.]+\) \|$' "$scratch/out.txt")" = 4 ]
refused "figures of a rehearsal" "is of a rehearsal: its rates mean nothing" \
  dev/bench/peers --take "$scratch/found.tsv" --results "$scratch/kept.tsv"

echo "-- what is refused"
refused "a row that is none" "there is no row 9b; --list names them" dev/bench/peers 9b
refused "a build that is not there" "build/cuda/bench/train is not there: scripts/gpu_check.sh machine builds it" \
  dev/bench/peers --build "$scratch/build/cuda"
echo "llmq/0.5b-bf16	only two" >>"$scratch/kept.tsv"
refused "a damaged file" "kept.tsv:14: 'llmq/0.5b-bf16' and 2 columns; expected the name of a row and 12 columns" \
  dev/bench/peers --table measured --model-build "$build" --results "$scratch/kept.tsv"
echo "$checks checks passed"
