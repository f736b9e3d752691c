#!/usr/bin/env bash
# Covers: a dry run of a cluster says what its prediction leaves out, what published runs reached of such predictions, how
# long the run takes, and at which of the given options it does not look
# Covers: --plan auto weighs larger micro-batches, too; --plan mesh finds the fastest mesh for a cluster, and its command
# Covers: what crosses each GPU's network card, at a rate that can be given; the host memory that a run takes
# Timeout: 300
# Turn: 2
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
reached="published runs on several GPUs reached 39% to 94% of such predictions, most of them 50% to 65% (dev/docs/predictions.md)"
check "what published runs reached" grep -qF "$reached" four.txt
check "  and what that would be here" grep -q "50% to 65% of the prediction would be [0-9.]*k to [0-9.]*k tokens/s a GPU" four.txt
check "the MFU of both peaks, FP8's first" grep -q "MFU [0-9.]*% of FP8's 1978 TFLOP/s, [0-9.]*% of bf16's 989 ([0-9.]*% with attention in full), by the data sheet" four.txt
fp8=$(sed -n "s/^ *MFU \([0-9.]*\)% of FP8's.*/\1/p" four.txt) mfu=$(sed -n "s/.*, \([0-9.]*\)% of bf16's.*/\1/p" four.txt)
check "  of which FP8's is twice bf16's: $mfu%, $fp8%" alike "$mfu" "$(awk "BEGIN { print 2 * $fp8 }")" 0.005
"$train" --dry-run --nodes 1 --gpus-per-node 1 --gpu H200 --model llama3.2-1b --micro-batch 2 >one.txt
check "one GPU: what one was measured" grep -q "one H200, whose steps gave the rates, was within 2% of such predictions in bf16" one.txt
check "  and what an H100 was" grep -q "one H100 was within 1% of them for Llamas of 124M and 8B, and 3% to 11% slower for Qwen2.5" one.txt
check "  and nothing of ranks" eval '! grep -q "ranks that are late\|published runs" one.txt'
check "  and one peak in bf16" grep -q "MFU .* of 989 TFLOP/s, by the data sheet" one.txt
# The figures are those of the page's tables: all rows with "published / predicted" on several GPUs, without a pipeline.
awk -F '|' '/^\|.*published \/ predicted/ { for (i = 1; i <= NF; ++i) if ($i ~ /published \/ predicted/) column = i; next }
  /^\|/ && column && $column ~ /%/ { if ($0 ~ /1F1B|PP 8/) next; n++; x = $column + 0; if (!least || x < least) least = x
    if (x > most) most = x; if (x >= 50 && x <= 65) within++ } !/^\|/ { column = 0 }
  END { print n, least, most, within }' "$root/dev/docs/predictions.md" >rows.txt
check "the page's rows: all, least, most, from 50% to 65%: $(cat rows.txt)" awk '{ exit !($1 > 40 && $2 == 39 && $3 == 94 && 2 * $4 > $1) }' rows.txt

echo "-- how long it takes"
check "without a length nothing is said" eval '! grep -q "GPU-hours" four.txt'
"$train" "${qwen[@]}" --zero-stage 3 --train-tokens 10B >length.txt
check "10B tokens: $(sed -n 's/^ *length *//p' length.txt)" grep -q "^ *length *9537 steps, 10.0B tokens: .* by this prediction, .* GPU-hours$" length.txt
hours=$(sed -n 's/.*, \([0-9.k]*\) GPU-hours$/\1/p' length.txt)
check "  which are as many GPU-hours as its speed takes" alike "$hours" "$(awk "BEGIN { print 9537 * 256 * 4096 / $(plain "$(speed length.txt)") / 3600 }")" 0.02
check "  and at half the speed twice the time" grep -q "^ *5h[0-9]*m to 6h[0-9]*m at 65% to 50% of the predicted speed" length.txt
shows "1T tokens: days" "1.00T tokens: 1[0-9].[0-9] days by this prediction" "${qwen[@]}" --zero-stage 3 --train-tokens 1T
shows "of steps, too" "^ *length *100 steps, 105M tokens: " "${qwen[@]}" --zero-stage 3 --steps 100
refused "a number of nonsense" "10X: not an integer, which may have a unit: 10k, 300M, 1.5B, 2T" "$train" "${qwen[@]}" --train-tokens 10X

echo "-- what crosses the network"
card() { sed -n "s/^ *of which each GPU's network card sends  *\([0-9.]*\) GiB = \([0-9.]*\) s at \([0-9.]*\) GB\/s$/\1 \2 \3/p" "$1"; } # GiB s GB/s
sends() { awk '/ on 4 nodes  */ && /GiB$/ { sum += $(NF - 1) } END { print sum }' "$1"; }                                                # GiB, in groups across nodes
eight=(--dry-run --nodes 4 --gpu H100 --model llama3-8b --seq-len 8192 --global-batch 32 --zero-stage 3)
"$train" "${eight[@]}" >zero3.txt
"$train" "${eight[@]}" --hybrid-shard-degree 8 >hybrid.txt
read -r gib seconds rate < <(card zero3.txt)
check "of $(sends zero3.txt) GiB of ZeRO-3 an eighth crosses each card: $gib GiB" alike "$gib" "$(awk "BEGIN { print $(sends zero3.txt) / 8 }")" 0.01
check "  which take $seconds s at $rate GB/s" awk "BEGIN { x = $gib * 1.0737 / $rate; exit !(x > $seconds - 0.006 && x < $seconds + 0.006) }"
check "replicas of nodes send theirs by a card of their own: $(card hybrid.txt)" alike "$(card hybrid.txt | cut -d ' ' -f 1)" "$(sends hybrid.txt)" 0.01
check "one node sends nothing by it" eval '! "$train" "${eight[@]/4/1}" | grep "network card sends"'
# Each rank sends its slices of the blocks' 6.98B elements to the owners, and its own results back, in bf16.
"$train" "${eight[@]}" --optimizer muon >muon.txt
matrices=$(sed -n 's/^ *gradients and Muon  *all_to_all of 32 ranks on 4 nodes  *\([0-9]*\) MiB$/\1/p' muon.txt)
check "Muon's matrices: $matrices MiB" alike "$matrices" "$(awk 'BEGIN { print 2 * 2 * 6.979e9 / 32 / 2^20 }')" 0.1
# No ring shares the card: all but the blocks for the own node cross it.
more=$(awk "BEGIN { print ($(card muon.txt | cut -d ' ' -f 1) - $gib) * 1024 }")
check "  of which $more MiB cross the card" awk "BEGIN { exit !($more > 0.5 * $matrices && $more < 0.95 * $matrices) }"
for rate in 40 5; do "$train" "${eight[@]}" --network-bandwidth $rate >zero3-$rate.txt; done
check "40 GB/s is what is assumed" [ "$(speed zero3-40.txt)" = "$(speed zero3.txt)" ]
check "at 5 GB/s the step takes what the card takes" awk "BEGIN { s = $(sed -n 's/.*a GPU: \([0-9.]*\) ms a step.*/\1/p' zero3-5.txt) / 1000; x = $(card zero3-5.txt | cut -d ' ' -f 2); exit !(s > x && s < 1.1 * x) }"
check "  by a rate that is named as given" grep -q "and 5 GB/s to others (as given)" zero3-5.txt
check "A100s have 200 Gb/s each" grep -q "and 20 GB/s to others, .* of a network card of 200 Gb/s a GPU)" <("$train" "${eight[@]/H100/A100}" || true)
"$train" "${eight[@]}" --network-bandwidth 5 --plan auto >auto-5.txt
check "--plan auto takes it" awk "BEGIN { exit !($(plain "$(speed auto-5.txt)") < 0.6 * $(plain "$(speed zero3.txt)")) }"
"$train" --dry-run --nodes 2 --gpus-per-node 4 --model llama3.2-1b --network-bandwidth 1 --plan mesh >slow.txt
"$train" --dry-run --nodes 2 --gpus-per-node 4 --model llama3.2-1b --plan mesh >fast.txt
check "--plan mesh, too: $(chosen slow.txt), else $(chosen fast.txt)" [ "$(chosen slow.txt)" != "$(chosen fast.txt)" ]
check "  and the command lacks it" eval '! grep -e "scripts/" slow.txt | grep -e --network-bandwidth'
refused "no rate" "--network-bandwidth 0: out of range" "$train" "${eight[@]}" --network-bandwidth 0
check "one node has no use for it" grep -q -- "--network-bandwidth changes nothing: it is for predictions of several nodes" <("$train" "${eight[@]/4/1}" --network-bandwidth 5)
check "nor has a run" grep -q -- "--network-bandwidth changes nothing" <("$train" --layers 1 --dry-run --network-bandwidth 5)

echo "-- what the run would have"
check "a batch that nobody asked for is called the default" grep -q "^ *global batch 64 sequences: the default; --global-batch N" <("$train" "${eight[@]/32/auto}")
check "  one that was asked for is not" eval '! grep "global batch.*default" zero3.txt'
check "the command of what fits" grep -q "^ *command *scripts/run --hosts node1:8,node2:8,node3:8,node4:8 --model llama3-8b" zero3.txt
check "  by Slurm, too" grep -q "^ *sbatch --nodes 4 --gpus-per-node 8 scripts/train.sbatch --model llama3-8b" zero3.txt
check "checkpoints from a copy in the host's memory" grep -q "^ *checkpoints every 30 minutes, .*from a copy in the host's memory" zero3.txt
check "  of 12 bytes a parameter" grep -q "^ *each about 89.7 GiB on the disk; the newest 3 stay: 269 GiB$" zero3.txt
shows "  also of a state in bf16, which a checkpoint stores in fp32" "^ *each about 89.7 GiB on the disk" "${eight[@]}" --master-dtype bf16 --moment-dtype bf16
check "a host that is assumed is named" grep -q "a host is assumed to have 256 GiB for each GPU, of which 90% may be pinned" zero3.txt
shows "one without room for the copy" "^ *checkpoints .*while training waits: there is no room for a copy" "${eight[@]}" --host-memory-limit 8GiB
check "  and no other is assumed" eval '! grep "is assumed" log'
for plan in auto mesh; do
  "$train" "${eight[@]}" --plan $plan >host.txt
  check "--plan $plan: the column is what the plan below it says" eval \
    '[ "$(awk "/^ *device  *host/ { getline; print \$3, \$4 }" host.txt)" = "$(sed -n "s/^ *host, total  *//p" host.txt)" ]'
done
need=$(sed -n 's/^ *device and reserve  *\([0-9.]*\) GiB/\1/p' zero3.txt)
shows "a plan that leaves less than 2 GiB is marked" "^ *$need GiB .* ~ --zero-stage 3$\|^ *$need GiB .* ~ as it is$" "${eight[@]}" --plan mesh --micro-batch 1 --memory-limit "$(awk "BEGIN { print $need + 1 }")GiB"
shows "  and warned of" "of .* GiB (--memory-limit) are left, and what the plan reserves for libraries is in part an assumption" "${eight[@]}" --memory-limit "$(awk "BEGIN { print $need + 1 }")GiB"
check "  and its limit is not called the device's own" grep -q "it fits: .* GiB (--memory-limit) of NVIDIA H100" log
check "  with its ten largest tensors" [ "$(grep -cE '^ +[0-9.]+ [KMG]iB( = [0-9]+ x [0-9.]+ [KMG]iB)? +device  ' log)" = 10 ]
check "others are not" eval '! grep " are left\| ten largest" zero3.txt'
shows "no published row offloads" "no published run that was compared offloads" "${eight[@]}" --offload-optimizer on
"$train" "${eight[@]/%3/0}" >whole.txt || [ $? = 2 ]
check "what is not sharded is said not to be" grep -q "ZeRO stage 0: nothing is sharded" whole.txt
check "what does not fit names its largest tensors, too" grep -q "the ten largest of the device are" whole.txt
check "what does not fit: needs and has, device and host" grep -q "it does not fit: the device needs [0-9.]* GiB .* and has 79.1 GiB (NVIDIA H100.*); the host needs .*, for 8 ranks and has 1.80 TiB$" whole.txt
refused "a GPU with another memory" "such as --gpu A100 --memory-limit 39GiB" "$train" "${eight[@]/H100/A100-40GB}"

for only in eval-only sample-only; do
  shows "--$only: a plan of memory" "NVIDIA H100 80GB HBM3: a plan of memory" "${qwen[@]}" --$only
  check "  and no state" eval '! grep -q "predicted\|^ *sent\|optimizer" log'
  refused "  nor a trace" "--trace x.json: it is of a step of a training" "$train" "${qwen[@]}" --$only --trace x.json
done

echo "-- one card"
card=(--dry-run --gpu RTX4090 --model qwen2.5-7b --seq-len 1024 --global-batch 512 --host-memory-limit 160GiB --plan auto)
"$train" "${card[@]}" >card.txt
check "--gpu alone is one GPU: $(chosen card.txt)" grep -q "^1 node of 1 NVIDIA GeForce RTX 4090: a model of one step" card.txt
check "  whose command starts one process" grep -q "^ *command *./train_llama --model qwen2.5-7b" card.txt
check "  Ctrl-C saves a checkpoint of this size" grep -q "^ *about 85.1 GiB on the disk" card.txt
check "--gpus-per-node: as many" grep -q "^1 node of 4 NVIDIA GeForce" <("$train" "${card[@]}" --gpus-per-node 4 --zero-stage 3)
for name in "rtx 4090" "NVIDIA GeForce RTX 4090" RTX_4090; do
  check "\"$name\" is the same" cmp card.txt <("$train" "${card[@]/RTX4090/$name}")
done
refused "another name" "--gpu RTX4900: no GPU of this name is known: did you mean RTX4090?" "$train" "${card[@]/RTX4090/RTX4900}"
check "two desktops have a network of 10 Gb/s" grep -q "and 1 GB/s to others, .*, of 10 Gb/s for a GeForce)" <("$train" "${card[@]}" --nodes 2 --gpus-per-node 1 --zero-stage 3)
"$train" "${card[@]}" --host-bandwidth 12 >slow.txt
check "a slower bus takes longer: $(speed slow.txt) of $(speed card.txt)" awk "BEGIN { exit !($(plain "$(speed slow.txt)") < $(plain "$(speed card.txt)")) }"
check "  and is named as given" grep -q "; 12 GB/s to the host and back (as given)" slow.txt
check "  of which GPUs that send through the host get half" grep -q "sends 6 GB/s in its node of 4" \
  <("$train" "${card[@]}" --host-bandwidth 12 --gpus-per-node 4 --zero-stage 3)
check "  but not in the command" eval '! grep -e "command" slow.txt | grep -e --host-bandwidth'
shows "more memory than the card has is a warning" "--memory-limit 24GiB: NVIDIA GeForce RTX 4090 has 23.5 GiB" "${card[@]}" --memory-limit 24GiB
for size in 64 "64 X" 64Gb/s; do
  refused "a host of $size" "--host-memory-limit $size: expected a size with its unit, as 80GiB" "$train" "${card[@]/160GiB/$size}"
done
check "a unit's case does not matter" cmp <("$train" "${card[@]/160GiB/160gib}" | grep chosen) <(grep chosen card.txt)
echo "-- what was asked for stays"
small_card=(--dry-run --gpu RTX5060Ti --model llama3.2-3b --seq-len 1024 --global-batch 64 --host-memory-limit 115GiB --plan auto)
for asked in "offload-weights off" "recompute none" "activation-offload none" "offload-optimizer off"; do
  "$train" "${small_card[@]}" "--${asked% *}" "${asked#* }" >asked.txt 2>/dev/null || [ $? = 2 ]
  awk '/tokens.s.*slower/,/more than there is/' asked.txt >asked_rows.txt
  check "--$asked: $(grep -c % asked_rows.txt) ways, all with it" eval '[ "$(grep -c % asked_rows.txt)" -gt 3 ] && ! grep -q -e "--${asked% *} " asked_rows.txt'
done
check "  and the command names it" grep -q "^ *command .*--activation-offload none" <("$train" "${card[@]}" --activation-offload none)
check "with one of recompute and offload asked for, all of the other" eval '"$train" "${small_card[@]}" --recompute none >asked.txt; grep -q "% .*--activation-offload all" asked.txt'
"$train" --dry-run --nodes 2 --model llama3.2-1b --plan mesh --tensor-parallel-degree 1 --zero-stage 1 >asked.txt
sed -n '/^ *device  *host/,/^not modelled/p' asked.txt >asked_rows.txt
check "--plan mesh, too: $(grep -c % asked_rows.txt) meshes" eval \
  '[ "$(grep -c % asked_rows.txt)" -gt 2 ] && ! grep -qe "--tensor-parallel-degree\|--zero-stage [023]" asked_rows.txt'
echo '{"gpu": "RTX4090", "gpus_per_node": 4}' >cards.json
check "a file may name the card, and how many" grep -q "^1 node of 4 NVIDIA GeForce RTX 4090" <("$train" --dry-run --config cards.json --zero-stage 3)
echo '{"recompute": "none", "activation_offload": "none", "offload_weights": false, "offload_optimizer": false}' >defaults.json
check "a file of another run asks for no default" cmp <(grep chosen card.txt) <("$train" "${card[@]}" --config defaults.json | grep chosen)
echo "-- what does not fit one card"
"$train" "${card[@]/160GiB/56GiB}" >unfit.txt 2>&1 || [ $? = 2 ]
check "the limits" grep -q "nothing of this fits 23.5 GiB of the device and 56.0 GiB of the host" unfit.txt
check "  the least that each state needs" [ "$(grep -c "GiB of the device and .* GiB of the host.* with --" unfit.txt)" = 4 ]
check "  of which one fits" grep -q "of the host, which fits, with .*--optimizer muon .*--moment-dtype bf16 --master-dtype bf16$" unfit.txt
check "  and which of both is short" grep -q "GiB  *1[0-9][0-9] GiB! " unfit.txt
"$train" "${card[@]/160GiB/145GiB}" --checkpoint-every 100 >full.txt
check "a host without room for a copy saves while training waits" grep -q "^ *checkpoints .*while training waits: there is no room for a copy" full.txt
"$train" "${card[@]/160GiB/145GiB}" --checkpoint-every 100 --checkpoint-async on >full.txt 2>&1 || [ $? = 2 ]
check "  unless a copy was asked for: then it is planned for" grep -q "nothing of this fits" full.txt

echo "-- options at which it does not look"
small=(--dry-run --nodes 2 --gpus-per-node 4 --model llama3.2-1b --layers 6 --seq-len 2048 --global-batch 32)
"$train" "${small[@]}" >plain.txt
check "nothing is said of what it looks at" eval '! grep -q "does not look" plain.txt'
shows "given ones are named" "it does not look at --train-data, --out, --lr$" "${small[@]}" --train-data x --lr 1e-3 --out y --zero-stage 1
# Each option of --help either changes what is printed, or is named.
tried=0
while read -r name kind; do
  given=()
  case $name in
    config | resume | consolidate | help | version | trace | dry-run | nodes | gpus-per-node | gpu) continue ;;
    eval-only | sample-only | gpus) continue ;; # refused
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
  same=$(cmp -s <(grep -v "scripts/" without.txt) <(grep -v -e "does not look at" -e " nothing: " -e "scripts/" with.txt) && echo 1 || echo 0)
  case $same$((named > 0)) in
    10) fail "--$name $value changes nothing that a dry run prints, and nothing says so: name it in unread_options() of llmc/run/idle_options.cpp" ;;
    01) diff without.txt with.txt || true && fail "--$name $value is said to change nothing (llmc/run/idle_options.cpp), but does" ;;
  esac
  tried=$((tried + 1))
done < <("$train" --help | sed -n 's/^  --\([a-z0-9-]*\) *\([^ ]*\).*/\1 \2/p')
check "each of $tried options changes what is printed, or is named" [ $tried -gt 70 ]

shows "activations that are nowhere kept: the line begins with that" "^ *activations kept: nothing; computed again: " "${small[@]}" --recompute block --activation-offload input

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
  [ "$(tail -n 2 mesh.txt | head -n 1 | sed 's/^ *command *//')" = "scripts/run --hosts node1:8,node2:8,node3:8,node4:8 --model qwen3-4b $(cut -d ' ' -f 6- <<<"$command")" ]
# shellcheck disable=SC2086  # words
"$train" --dry-run --nodes 4 --gpu H100 ${command#*node4:8} >again.txt
check "  whose options have the predicted speed" [ "$(speed again.txt)" = "$best" ]
check "weights are gathered in FP8 where that is faster" grep -q -- "--fp8-all-gather on" <(rows mesh.txt)
"$train" "${qwen[@]}" --plan mesh --tensor-parallel-degree 2 --zero-stage 1 --micro-batch 2 --train-data 'my books/*.bin' >kept.txt
check "what was asked for stays" eval '[ "$(rows kept.txt | wc -l)" -ge 2 ] && ! rows kept.txt | grep -e "--tensor-parallel" -e "--zero-stage" -e "--micro-batch" >/dev/null'
check "  and is in the command, as a shell reads it" grep -q "^ *command .* --train-data 'my books/\*.bin' .*--micro-batch 2 .*--zero-stage 1 --tensor-parallel-degree 2" kept.txt
shows "many nodes: by Slurm" "^ *command *sbatch --nodes 16 --gpus-per-node 8 scripts/train.sbatch --model llama3.2-1b " --dry-run --nodes 16 --model llama3.2-1b --global-batch 128 --plan mesh
shows "one GPU" "^ *command *./train_llama --model llama3.2-1b " --dry-run --nodes 1 --gpus-per-node 1 --model llama3.2-1b --plan mesh
refused "what fits nowhere: the nearest" "the nearest needs " "$train" --dry-run --nodes 1 --gpus-per-node 2 --model llama3.1-405b --seq-len 8192 --plan mesh
check "  with its options" grep -q "GiB of the device and .* of the host, for a rank, with .*--offload-optimizer" refused
refused "a batch that no mesh can share" "no mesh of 24 ranks can train this" "$train" --dry-run --nodes 3 --model llama3.2-1b --global-batch 7 --seq-len 4095 --plan mesh
refused "ranks that are here" "--plan mesh: it searches the meshes of a cluster that is not here" "$train" --plan mesh --dry-run
echo "$checks checks passed"
