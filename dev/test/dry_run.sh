#!/usr/bin/env bash
# Covers: a dry run of a cluster says what its prediction leaves out, what published runs reached of such predictions, how
# long the run takes, and at which of the given options it does not look
# Covers: --plan auto weighs larger micro-batches, too; --plan mesh finds the fastest mesh for a cluster, and its command
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"

speed() { sed -n 's/^ *predicted  *\([^ ]*\) tokens\/s a GPU.*/\1/p' "$1"; }
chosen() { sed -n 's/^chosen: //p' "$1"; }
plain() { awk '{ x = $1; if (sub(/k$/, "", x)) x *= 1e3; else if (sub(/M$/, "", x)) x *= 1e6; print x + 0 }' <<<"$1"; } # 26.9k → 26900
# alike A B PART: two numbers, whose units may be k or M, differ by at most that part.
alike() { awk -v a="$(plain "$1")" -v b="$(plain "$2")" -v part="$3" 'BEGIN { d = a / b - 1; exit !(d <= part && -d <= part) }'; }

echo "-- what a prediction leaves out"
qwen=(--dry-run --nodes 4 --gpu H100 --model qwen3-4b --fp8 tensorwise --global-batch 256)
"$train" "${qwen[@]}" --zero-stage 3 >four.txt
check "ranks that are late, and others" grep -q "^ *not modelled: ranks that are late, .*; loading of data, validation, samples, checkpoints" four.txt
reached="published runs on several GPUs reached 38% to 94% of such predictions, most of them 50% to 65% (dev/docs/predictions.md)"
check "what published runs reached" grep -qF "$reached" four.txt
check "  and what that would be here" grep -q "50% to 65% of the prediction would be [0-9.]*k to [0-9.]*k tokens/s a GPU" four.txt
check "the MFU of both peaks" grep -q "MFU [0-9.]*% (.*) of 989 TFLOP/s in bf16, [0-9.]*% of 1978 in FP8, by the data sheet" four.txt
mfu=$(sed -n 's/.*MFU \([0-9.]*\)%.*/\1/p' four.txt) fp8=$(sed -n 's/.* in bf16, \([0-9.]*\)% of.*/\1/p' four.txt)
check "  of which FP8's is twice bf16's: $mfu%, $fp8%" alike "$mfu" "$(awk "BEGIN { print 2 * $fp8 }")" 0.005
"$train" --dry-run --nodes 1 --gpus-per-node 1 --gpu H200 --model llama3.2-1b --micro-batch 2 >one.txt
check "one GPU: what one was measured" grep -q "one H200, whose steps gave the rates, was within 2% of such predictions in bf16" one.txt
check "  and nothing of ranks" eval '! grep -q "ranks that are late\|published runs" one.txt'
check "  and one peak in bf16" grep -q "MFU .* of 989 TFLOP/s, by the data sheet" one.txt
# The figures are those of the page's tables: all rows with "published / predicted" on several GPUs, without a pipeline.
awk -F '|' '/^\|.*published \/ predicted/ { for (i = 1; i <= NF; ++i) if ($i ~ /published \/ predicted/) column = i; next }
  /^\|/ && column && $column ~ /%/ { if ($0 ~ /1F1B|PP 8/) next; n++; x = $column + 0; if (!least || x < least) least = x
    if (x > most) most = x; if (x >= 50 && x <= 65) within++ } !/^\|/ { column = 0 }
  END { print n, least, most, within }' "$root/dev/docs/predictions.md" >rows.txt
check "the page's rows: all, least, most, from 50% to 65%: $(cat rows.txt)" awk '{ exit !($1 > 40 && $2 == 38 && $3 == 94 && 2 * $4 > $1) }' rows.txt

echo "-- how long it takes"
check "without a length nothing is said" eval '! grep -q "GPU-hours" four.txt'
"$train" "${qwen[@]}" --zero-stage 3 --train-tokens 10B >length.txt
check "10B tokens: $(sed -n 's/^ *length *//p' length.txt)" grep -q "^ *length *9537 steps, 10.0B tokens: .* by this prediction, .* GPU-hours$" length.txt
hours=$(sed -n 's/.*, \([0-9.k]*\) GPU-hours$/\1/p' length.txt)
check "  which are as many GPU-hours as its speed takes" alike "$hours" "$(awk "BEGIN { print 9537 * 256 * 4096 / $(plain "$(speed length.txt)") / 3600 }")" 0.02
check "  and at half the speed twice the time" grep -q "^ *5h[0-9]*m to 6h[0-9]*m at 65% to 50% of the predicted speed" length.txt
"$train" "${qwen[@]}" --zero-stage 3 --train-tokens 1T >days.txt
check "days: $(sed -n 's/^ *length *//p' days.txt)" grep -q "1.00T tokens: 1[0-9].[0-9] days by this prediction" days.txt
"$train" "${qwen[@]}" --zero-stage 3 --steps 100 >steps.txt
check "of steps, too" grep -q "^ *length *100 steps, 105M tokens: " steps.txt
refused "a number of nonsense" "10X: not an integer, which may have a unit: 10k, 300M, 1.5B, 2T" "$train" "${qwen[@]}" --train-tokens 10X

for only in eval-only sample-only; do
  refused "no training" "models a step of a training" "$train" "${qwen[@]}" --$only
done

echo "-- options at which it does not look"
small=(--dry-run --nodes 2 --gpus-per-node 4 --model llama3.2-1b --layers 6 --seq-len 2048 --global-batch 32)
"$train" "${small[@]}" >plain.txt
check "nothing is said of what it looks at" eval '! grep -q "does not look" plain.txt'
"$train" "${small[@]}" --train-data x --lr 1e-3 --out y --zero-stage 1 >unread.txt
check "given ones are named" grep -q "it does not look at --train-data, --out, --lr$" unread.txt
# Each option of --help either changes what is printed, or is named.
tried=0
while read -r name kind; do
  given=()
  case $name in
    config | resume | consolidate | help | version | trace | dry-run | nodes | gpus-per-node | gpu) continue ;;
    eval-only | sample-only) continue ;; # refused
    model | layers | seq-len | global-batch) continue ;; # in each of these commands
    fp8-*) given=(--fp8 delayed --zero-stage 3) ;; # refused without
    tensor-parallel-* | context-*) given=(--micro-batch 1) ;;
    checkpoint-every) given=(--checkpoint-minutes 0) ;; # else a copy of the state is planned already
  esac
  case $name in
    fp8-skip) value=down_proj ;;
    memory-limit | host-memory-limit) value=70GiB ;;
    dtype) value=fp32 ;;
    attention) value=mma ;;
    min-lr) value=1e-5 ;;
    checkpoint-minutes) value=0 ;; # without checkpoints no copy of the state is planned
    export | checkpoint-async | checkpoint-on-signal | fp8-precompute-scales) value=off ;;
    activation-loading-horizon | fp8-history) value=1 ;;
    *)
      case $kind in
        N) value=2 ;;
        X) value=0.5 ;;
        'on|off') value=on ;;
        *'|'*) value=$(cut -d '|' -f 2 <<<"$kind") ;;
        *) value=word ;;
      esac
      ;;
  esac
  cp plain.txt without.txt
  [ ${#given[@]} = 0 ] || "$train" "${small[@]}" "${given[@]}" >without.txt
  code=0
  "$train" "${small[@]}" "${given[@]}" "--$name" "$value" >with.txt 2>&1 || code=$?
  [ $code = 0 ] || [ $code = 2 ] || { cat with.txt && fail "--$name $value"; }
  named=$(grep -c -e "does not look at .*--$name\b" -e "--$name\b.* nothing: " with.txt || true)
  same=$(cmp -s without.txt <(grep -v -e "does not look at" -e " nothing: " with.txt) && echo 1 || echo 0)
  case $same$((named > 0)) in
    10) fail "--$name $value changes nothing that a dry run prints, and nothing says so: name it in unread_options() of llmc/train/idle_options.cpp" ;;
    01) diff without.txt with.txt || true && fail "--$name $value is said to change nothing (llmc/train/idle_options.cpp), but does" ;;
  esac
  tried=$((tried + 1))
done < <("$train" --help | sed -n 's/^  --\([a-z0-9-]*\) *\([^ ]*\).*/\1 \2/p')
check "each of $tried options changes what is printed, or is named" [ $tried -gt 70 ]

echo "-- larger micro-batches"
"$train" "${qwen[@]}" --zero-stage 3 --plan auto >auto.txt
check "chosen, for Qwen3-4B in FP8 on 32 GPUs: $(chosen auto.txt)" [ "$(chosen auto.txt)" = "--micro-batch 4" ]
for size in 1 2 4 8; do
  "$train" "${qwen[@]}" --zero-stage 3 --micro-batch $size >size.txt || { [ $? = 2 ] && grep -q "it does not fit" size.txt && continue; }
  check "  not slower than $size: $(speed size.txt)" awk "BEGIN { exit !($(plain "$(speed auto.txt)") >= $(plain "$(speed size.txt)")) }"
done
"$train" "${qwen[@]}" --zero-stage 3 --plan auto --micro-batch 1 >given.txt
check "one that was given stays" [ "$(chosen given.txt)" = "as it is" ]
check "the comparison says what it leaves out" [ "$(grep -cF "$reached" auto.txt)" = 1 ]

echo "-- meshes"
LC_ALL=C "$train" "${qwen[@]}" --plan mesh >mesh.txt
rows() { sed -n '/^ *device  *host/,/^not modelled/p' "$1" | sed '1d;$d'; }
check "$(head -n 1 mesh.txt)" grep -q "^--plan mesh: [0-9]* meshes weighed, of which [0-9]* fit; 256 sequences of 4096 tokens a step" mesh.txt
check "a table of the fastest" [ "$(rows mesh.txt | wc -l)" = 8 ]
check "  from the fastest on" cmp <(rows mesh.txt | awk '{ print $5 }') <(rows mesh.txt | awk '{ print $5 }' | sort -rn)
check "  with what it leaves out" [ "$(grep -cF "$reached" mesh.txt)" = 1 ]
while read -r device unit _ _ tokens _ _ _ _ _ _ _ _ words; do
  # shellcheck disable=SC2086  # words
  "$train" "${qwen[@]}" $words >row.txt
  check "  $tokens tokens/s and $device $unit with $words" eval "alike $tokens $(speed row.txt) 0.002 && grep -q 'it fits: $device $unit ' row.txt"
done < <(rows mesh.txt | sed -n '1p;4p;8p')
best=$(speed mesh.txt)
for other in "--zero-stage 1" "--zero-stage 3 --micro-batch 4" "--zero-stage 3 --tensor-parallel-degree 2 --micro-batch 4" \
  "--zero-stage 3 --context-parallel-degree 2" "--zero-stage 3 --hybrid-shard-degree 8 --micro-batch 4"; do
  # shellcheck disable=SC2086  # words
  "$train" "${qwen[@]}" $other >other.txt
  check "  not slower than $other: $(speed other.txt)" awk "BEGIN { exit !($(plain "$best") * 1.001 >= $(plain "$(speed other.txt)")) }"
done
command=$(sed -n 's/^ *command *//p' mesh.txt)
check "it ends with the command: $command" \
  [ "$(tail -n 1 mesh.txt | sed 's/^ *command *//')" = "scripts/run --hosts node1:8,node2:8,node3:8,node4:8 --model qwen3-4b $(cut -d ' ' -f 6- <<<"$command")" ]
# shellcheck disable=SC2086  # words
"$train" --dry-run --nodes 4 --gpu H100 ${command#*node4:8} >again.txt
check "  whose options have the predicted speed" [ "$(speed again.txt)" = "$best" ]
"$train" "${qwen[@]}" --plan mesh --tensor-parallel-degree 2 --zero-stage 1 --micro-batch 2 --train-data 'my books/*.bin' >kept.txt
check "what was asked for stays" eval '[ "$(rows kept.txt | wc -l)" -ge 2 ] && ! rows kept.txt | grep -e "--tensor-parallel" -e "--zero-stage" -e "--micro-batch" >/dev/null'
check "  and is in the command, as a shell reads it" grep -q "^ *command .* --train-data 'my books/\*.bin' .*--micro-batch 2 .*--zero-stage 1 --tensor-parallel-degree 2" kept.txt
"$train" --dry-run --nodes 16 --model llama3.2-1b --global-batch 128 --plan mesh >slurm.txt
check "many nodes: by Slurm" grep -q "^ *command *sbatch --nodes 16 --gpus-per-node 8 scripts/train.sbatch --model llama3.2-1b " slurm.txt
"$train" --dry-run --nodes 1 --gpus-per-node 1 --model llama3.2-1b --plan mesh >single.txt
check "one GPU" grep -q "^ *command *scripts/run -n 1 --model llama3.2-1b " single.txt
refused "what fits nowhere: the nearest" "the nearest needs " "$train" --dry-run --nodes 1 --gpus-per-node 2 --model llama3.1-405b --seq-len 8192 --plan mesh
check "  with its options" grep -q "GiB of the device and .* of the host, for a rank, with .*--offload-optimizer" refused
refused "a batch that no mesh can share" "no mesh of 24 ranks can train this" "$train" --dry-run --nodes 3 --model llama3.2-1b --global-batch 7 --seq-len 4095 --plan mesh
refused "ranks that are here" "--plan mesh: it searches the meshes of a cluster that is not here" "$train" --plan mesh --dry-run
echo "$checks checks passed"
