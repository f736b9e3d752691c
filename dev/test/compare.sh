#!/usr/bin/env bash
# Covers: scripts/compare: its figures follow from train.jsonl and run.json; it refuses what is no run, and runs whose
# figures say nothing about each other; run.json says how a run was started, and from which step
# Timeout: 200
# Turn: 2
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"
export LLMC_THREADS=1
compare() { "$root/scripts/compare" "$@"; }
run() { # NAME RANKS ARGUMENTS…
  ranks "$2" "$train" --layers "${layers:-1}" --seq-len 32 --global-batch 4 --val-every 0 --sample-every 0 --export off "${@:3}" \
    --out "$1" >"$1.txt" 2>&1 || { cat "$1.txt" && fail "the run $1"; }
}
# edited NAME FROM PYTHON: a copy of a run; PYTHON changes its run.json, `facts`, or its `lines`.
edited() {
  cp -r "$2" "$1" && python3 - "$1" "$3" <<'END'
import json, sys
folder = sys.argv[1]
facts = json.load(open(f"{folder}/run.json"))
lines = [json.loads(line) for line in open(f"{folder}/train.jsonl")]
exec(sys.argv[2])
json.dump(facts, open(f"{folder}/run.json", "w"))
open(f"{folder}/train.jsonl", "w").writelines(json.dumps(line) + "\n" for line in lines)
END
}

echo "-- runs of 1 and 2 ranks"
run bf16-1 1 --steps 7 --dtype bf16 --checkpoint-every 4
run fp8-1 1 --steps 6 --dtype bf16 --fp8 tensorwise
run fp32-2 2 --steps 6 --dtype fp32
run bf16-2 2 --steps 6 --dtype bf16
run fp8-2 2 --steps 8 --dtype bf16 --fp8 delayed --zero-stage 3 --fp8-all-gather
names=(bf16-1 fp8-1 fp32-2 bf16-2 fp8-2)
compare "${names[@]}" --warm-up 2 --csv table.csv --picture speeds.svg >table.md

# The same figures from train.jsonl by other means. The row of each run: ranks, precision, tokens/s per rank, how many
# percent more than the first run with as many ranks, FP8's percent more than bf16, percent of the speed per rank on one
# rank, loss after step 6.
speed() { # NAME RANKS: a step has 128 tokens
  sed -n 's/.*"step_ms":\([^,]*\),.*/\1/p' "$1/train.jsonl" |
    awk -v ranks="$2" 'NR > 2 { ms += $1; steps++ } END { printf "%.9g", 128 * steps / (ms / 1000) / ranks }'
}
percent() { awk -v a="$1" -v b="$2" 'BEGIN { printf "%.6f", 100 * a / b - 100 }'; }
loss() { losses "$1/train.jsonl" | sed -n 's/^6 //p'; }
for name in "${names[@]}"; do declare "speed_${name/-/_}=$(speed "$name" "${name#*-}")"; done
# shellcheck disable=SC2154  # declared in the loop
cat >expected <<END
1 bf16 $speed_bf16_1 - - - $(loss bf16-1)
1 FP8_tensorwise $speed_fp8_1 $(percent "$speed_fp8_1" "$speed_bf16_1") $(percent "$speed_fp8_1" "$speed_bf16_1") - $(loss fp8-1)
2 fp32 $speed_fp32_2 - - - $(loss fp32-2)
2 bf16 $speed_bf16_2 $(percent "$speed_bf16_2" "$speed_fp32_2") - $(awk -v x="$(percent "$speed_bf16_2" "$speed_bf16_1")" 'BEGIN { printf "%.6f", x + 100 }') $(loss bf16-2)
2 FP8_delayed_+_all-gather $speed_fp8_2 $(percent "$speed_fp8_2" "$speed_fp32_2") $(percent "$speed_fp8_2" "$speed_bf16_2") - $(loss fp8-2)
END
tail -n +2 table.csv | tr ' ' _ | awk -F, '{ for (i = 12; i <= 15; i++) if ($i == "") $i = "-"; print $5, $6, $12, $13, $14, $15, $17 }' >found
same_figures() { # speeds within a millionth, percentages within 0.0001, losses to 12 digits
  paste -d ' ' expected found | awk '
    function near(a, b, limit) { return a == b || (a != "-" && b != "-" && (a - b) ^ 2 <= limit ^ 2) }
    NF != 14 || $1 != $8 || $2 != $9 { bad = 1 }
    { for (i = 3; i <= 7; i++)
        if (!near($i, $(i + 7), i == 3 ? 1e-6 * $i : i < 7 ? 1e-4 : 1e-12 * $i)) {
          print "expected", $i, "found", $(i + 7)
          bad = 1
        }
      rows++ }
    END { exit bad || rows != 5 }'
}
check "the CSV's figures follow from train.jsonl" same_figures
check "the losses are those of step 6, the last that all have" eval '[ "$(cut -d, -f16 table.csv | uniq | tr "\n" " ")" = "loss_step 6 " ]'
check "each run's own steps are timed" eval '[ "$(cut -d, -f10,11 table.csv | tail -n +2 | tr "\n" " ")" = "3,7 3,6 3,6 3,6 3,8 " ]'
cell() { awk -F ' *\\| *' -v run="$1" -v column="$2" '/^\| run/ { for (i = 2; i < NF; i++) if ($i == column) at = i } $2 == run { print $at }' table.md; }
check "Markdown: the loss" eval '[ "$(cell fp8-2 "training loss of step 6")" = "$(printf %.4f "$(loss fp8-2)")" ]'
check "  no held-out loss where none was measured" not grep -q "| held-out" table.md
check "  faster or slower in FP8" eval '[ "$(cell fp8-2 "FP8 against bf16")" = "$(awk -v x="$(percent "$speed_fp8_2" "$speed_bf16_2")" "BEGIN { printf \"%.1f%% %s\", x < 0 ? -x : x, x < 0 ? \"slower\" : \"faster\" }")" ]'
check "  ranks, not GPUs, on a CPU" eval '[ "$(cell bf16-2 ranks)" = 2 ] && ! grep -q GPU table.md'
check "  other options that differ" grep -qF -- "- \`--zero-stage\`: 0 (bf16-1, fp8-1, fp32-2, bf16-2), 3 (fp8-2)" table.md
check "  speeds of few steps" grep -qF "steps were timed, so the speed is a rough one: bf16-1 (5), fp8-1 (4), fp32-2 (4), bf16-2 (4), fp8-2 (6)." table.md
check "the picture has a bar for each run" eval '[ "$(grep -c "<rect x=" speeds.svg)" = 5 ] && python3 -c "import sys, xml.dom.minidom as x; x.parse(sys.argv[1])" speeds.svg'
compare "${names[@]}" --warm-up 2 --step 3 --csv third.csv >/dev/null
check "--step" eval '[ "$(sed -n 2p third.csv | cut -d, -f16,17)" = "3,$(losses bf16-1/train.jsonl | sed -n "s/^3 //p")" ]'

edited once bf16-1 'lines += [dict(step=0, val_loss=5.5), dict(step=6, val_loss=2.25)]'
edited twice fp8-1 'lines += [dict(step=0, val_loss=5.5), dict(step=6, val_loss=2.125)]'
edited early fp8-2 'lines += [dict(step=4, val_loss=3.5), dict(step=8, val_loss=1.5)]'
compare once twice --warm-up 2 >table.md
check "the held-out loss, where all measured it at one step" [ "$(cell once "held-out loss after 6 steps") $(cell twice "held-out loss after 6 steps")" = "2.2500 2.1250" ]
compare once early fp32-2 --warm-up 2 --csv held_out.csv >table.md
check "  else the last one until the common step, with its step" eval '[ "$(cell once "held-out loss") $(cell early "held-out loss") $(cell fp32-2 "held-out loss")" = "2.2500 (step 6) 3.5000 (step 4) –" ]'
check "  also as CSV" [ "$(cut -d, -f18,19 held_out.csv | tr "\n" " ")" = "held_out_step,held_out_loss 6,2.25 4,3.5 , " ]

echo "-- a run that goes on"
ranks 2 "$train" --resume auto --steps 10 --out bf16-1 >resumed.txt 2>&1 || { cat resumed.txt && fail "resume"; }
compare bf16-1 --warm-up 1 --csv resumed.csv >/dev/null
check "its last start is timed, with the ranks of that start" eval '[ "$(sed -n 2p resumed.csv | cut -d, -f5,10,11)" = 2,9,10 ]'

echo "-- several nodes"
gpus='facts.update(nodes=2, ranks=16, device="NVIDIA H100 80GB HBM3", gpu=True)'
edited cluster fp32-2 "$gpus"
edited cluster-four fp32-2 "$gpus; facts.update(nodes=4, ranks=32)"
compare cluster cluster-four --warm-up 2 >table.md
check "nodes and GPUs" eval '[ "$(cell cluster nodes) $(cell cluster GPUs)" = "2 16" ]'
check "  speed per GPU against that on the fewest GPUs" [ "$(cell cluster-four "against fewest GPUs")" = 50.0% ]

echo "-- bad input"
check "a wrong option is code 1, not argparse's 2, which the program has for what does not fit" exits 1 compare --nothing
refused "a folder that is no run" "has no train.jsonl" compare bf16-2 .
refused "no such folder" "nowhere is not a folder" compare nowhere
refused "a run twice" "is named twice" compare bf16-2 ./bf16-2
refused "too few steps" "fp32-2 has 6 steps since its start, and the warm-up takes 10" compare fp32-2
check "  and the way out" grep -q -- "--warm-up 5" refused
refused "a step that a run lacks" "--step 8 is not in bf16-2: bf16-2 has steps 1 to 6; fp8-2 has steps 1 to 8" compare bf16-2 fp8-2 --step 8 --warm-up 2
edited late fp32-2 'facts["first_step"] = 6; [line.update(step=line["step"] + 6) for line in lines]'
refused "no common step" "no step is in all runs: fp32-2 has steps 1 to 6; late has steps 7 to 12" compare fp32-2 late --warm-up 2
edited unstarted fp32-2 'lines = lines[:0]'
refused "a run without a step" "has no step after step 0" compare unstarted
layers=2 run deeper 1 --steps 3
refused "another model" "num_hidden_layers is 1 in fp32-2, 2 in deeper" compare fp32-2 deeper fp8-2 --warm-up 1
check "  and the way out" grep -qx "    scripts/compare fp32-2 fp8-2" refused
heads_model | sed 's/"vocab_size": 256/"vocab_size": 1514/' >model.json
head -c 20000 "$root/dev/data/tinyshakespeare.txt" >text.txt
mkdir copy && cp "$root/dev/test/tokenizers/llama3.json" copy/tokenizer.json
words=(--model model.json --steps 3 --train-data text.txt)
run words 1 "${words[@]}" --tokenizer "$root/dev/test/tokenizers/llama3.json"
run copied 1 "${words[@]}" --tokenizer copy
run unknown 1 "${words[@]}"
check "a copy of a tokenizer is the same one" eval 'compare words copied --warm-up 1 >table.md'
refused "another tokenizer" " in words, not known in unknown" compare words unknown --warm-up 1
cp -r fp32-2 old && rm old/run.json
refused "a run of an older program" "old has no run.json" compare old
edited broken fp32-2 'facts["ranks"] = 0'
refused "a fact that cannot be" 'broken/run.json: "ranks" is 0' compare broken
refused "a picture that is no SVG" "--picture speeds.png: the picture is SVG" compare fp32-2 --warm-up 2 --picture speeds.png
refused "a place that is not there" "--csv nowhere/table.csv: cannot write it: No such file" compare fp32-2 --warm-up 2 --csv nowhere/table.csv
refused "a warm-up that is no number" "invalid steps value: '-1'" compare fp32-2 --warm-up -1
echo "$checks checks passed"
