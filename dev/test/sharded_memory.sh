#!/usr/bin/env bash
# Covers: promise 8: where ranks share a training out, in each stage, its steps touch each planned byte and no other; what
# is planned falls with the ranks as theory says
# Covers: promise 6: to initialize or import a sharded model, a rank needs memory for its part of it
# Timeout: 300
# Turn: 3
#
# SHARDING=every: more meshes, 8 ranks too, and gradients that are reduced in either type.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
export LLMC_THREADS=1
memory=$build/test/sharded_memory

echo "-- touched"
touched() { # LINES RANKS WORD…
  ranks "$2" "$memory" "${@:3}" >"$scratch/touched" 2>&1 || { cat "$scratch/touched" && return 1; }
  [ "$(grep -c 'buffers of' "$scratch/touched")" = "$1" ]
}
meshes=("1 0" "2 0" "4 2") fp8_meshes=("2 0") counts=(1 2 4) kinds=4 every=()
if [ "${SHARDING:-}" = every ]; then
  meshes+=("4 0" "8 0") fp8_meshes+=("3 0" "4 2") counts+=(8) kinds=8 every=(every)
fi
for mesh in "${meshes[@]}"; do
  read -r n degree <<<"$mesh"
  check "$n ranks, degree $degree, 4 stages, $kinds kinds of training: all that is planned is touched, and no other byte" \
    touched $((4 * kinds)) "$n" touched "$degree" "${every[@]}"
done
for mesh in "${fp8_meshes[@]}"; do
  read -r n degree <<<"$mesh"
  check "$n ranks, degree $degree, 7 kinds of FP8 training in 3 stages, and 3 with weights on the host in 4: the same" touched 33 "$n" touched-fp8 "$degree"
done
for n in 1 3; do check "$n ranks, 4 stages, 2 kinds of training with Muon: the same" touched 8 "$n" touched-muon 0; done

echo "-- planned: for bf16 there is a master copy in addition to the moments; whole units are gathered"
planned() { # MODEL PRECISION RANKS…
  local n
  for n in "${@:3}"; do ranks "$n" "$memory" plan "$1" "$2" || return 1; done >"$scratch/planned"
  echo "$1 in $2, of each rank:"
  printf '%5s %5s %10s %10s %10s %10s %10s %10s %10s\n' stage ranks weights gradients optimizer "= last" +gradients +gathered "= total"
  sort -n -k 1,1 -k 2,2 "$scratch/planned"
  [ "$(wc -l <"$scratch/planned")" = $((4 * ($# - 2))) ]
}
check "which falls as theory says" planned llama3-8b bf16 "${counts[@]}"
check "with a tied head" planned llama3.2-1b bf16 2
check "in fp32, and where a part's padding is not nothing" planned tiny fp32 3
if [ "${SHARDING:-}" = every ]; then
  check "in fp32" planned llama3-8b fp32 "${counts[@]}"
  check "with a tied head" planned llama3.2-1b bf16 8
  check "with another padding" planned tiny fp32 8
fi

echo "-- initialized and imported in stage 3: the host's memory apart from the arena, which in the CPU backend is the host's too"
# Three units of about the same size, 48 M parameters.
cat >"$scratch/model.json" <<'JSON'
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": 512,
 "num_hidden_layers": 1, "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 64, "intermediate_size": 9216,
 "vocab_size": 32000, "rms_norm_eps": 1e-5, "initializer_range": 0.02, "tie_word_embeddings": false,
 "max_position_embeddings": 512, "rope_theta": 10000.0}
JSON
"$memory" export "$scratch/model.json" "$scratch/weights"
# A file that was just written, or that one rank has read from begin to end, is cached in large blocks, and a rank that
# reads a byte of such a block maps all of it. If the cache has no part of the file, its blocks are small.
sync "$scratch/weights/model.safetensors"
forget() { dd if="$scratch/weights/model.safetensors" iflag=nocache count=0 status=none; }
for n in "${counts[@]}"; do
  for way in initialize import; do
    model=$scratch/weights
    if [ $way = initialize ]; then model=$scratch/model.json; fi
    forget
    ranks "$n" "$memory" $way "$model" >"$scratch/$way-$n" || fail "$way on $n ranks"
    check "$way on $n ranks" [ "$(grep -c '^rank' "$scratch/$way-$n")" = "$n" ]
  done
done
# most WAY N: of N ranks, the most bytes of state, of pages of the file, of other memory that was added, and of all three.
most() {
  awk '{ state = $5; added = $9; mapped = $12; other = added - mapped; all = state + added
         if (state > s) s = state; if (mapped > m) m = mapped; if (other > o) o = other; if (all > a) a = all }
       END { print s + 0, m + 0, o + 0, a + 0 }' "$scratch/$1-$2"
}
# proportional WAY N: each figure is at most that of one rank / N and a constant, which has two parts: 3 units begin and
# end anywhere in the file, of which the system maps up to a huge page of 2 MiB around each byte that is read; and 1 MiB
# for padding, stacks of kernels, and the resolution at which the system counts.
proportional() {
  awk -v n="$2" 'NR == 1 { for (i = 1; i <= 4; ++i) one[i] = $i }
    NR == 2 { mib = 2 ^ 20; constant[1] = mib; constant[2] = 3 * 2 * 2 * mib; constant[3] = mib; constant[4] = 14 * mib
              for (i = 1; i <= 4; ++i) if ($i > one[i] / n + constant[i]) bad = 1
              printf "     %d ranks: state %.1f MiB, pages of the file %.1f MiB, other %.1f MiB; together %.1f MiB, 1/%.2f of one rank\n", n, $1 / mib, $2 / mib, $3 / mib, $4 / mib, one[4] / $4 }
    END { exit NR != 2 || bad }' <(most "$1" 1) <(most "$1" "$2")
}
for way in initialize import; do
  echo "$way, at most in one rank:"
  for n in "${counts[@]}"; do check "  1/$n" proportional $way "$n"; done
done
added() { awk '{ print $3 }' <(most "$1" "$2"); }
check "to initialize adds less than 1 MiB to a rank's arena, also where it is alone" [ "$(added initialize 1)" -lt 1048576 ]
check "to import, 64 MiB at most pass through the host at once" [ "$(added import 1)" -lt $((65 << 20)) ]
echo "$checks checks passed"
