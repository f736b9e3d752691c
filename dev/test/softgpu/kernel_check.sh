#!/usr/bin/env bash
# Covers: a wrong, a hanging and a crashing kernel are told before the first step, with what goes round them, on 1 and 2
# ranks; so is a wrong quantization
# Timeout: 600
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
in_own_tree
cat >"$scratch/head64.json" <<'JSON'
{"model_type": "llama", "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1,
 "intermediate_size": 256, "vocab_size": 256, "max_position_embeddings": 256, "rms_norm_eps": 1e-5, "rope_theta": 10000.0}
JSON
# trains RANKS EDIT OPTIONS…: with the kernels' PTX edited, on the first rank alone if there are two
# shellcheck disable=SC2016  # of the other shell
trains() {
  limit=300 ranks "$1" bash -c '
    if [ "${OMPI_COMM_WORLD_RANK:-0}" = 0 ]; then export LLMC_SOFTGPU_PTX=$0; fi
    exec "$@"' "$2" "$train" --model "$scratch/head64.json" --steps 2 --val-every 0 --sample-every 0 --export off --micro-batch 2 \
    --global-batch 8 --seq-len 64 --dtype bf16 --quiet --out "$scratch/run" "${@:3}"
}
told() { # WHAT TEXT ROUND RANKS EDIT OPTIONS…: the run ends with TEXT and ROUND, and no step is done
  refused "$1 on $4 rank(s)" "$2" trains "${@:4}"
  check "  and what goes round it" grep -qF -- "$3 goes round it" "$scratch/refused"
  check "  and nothing was trained" [ ! -e "$scratch/run/train.jsonl" ]
  rm -rf "$scratch/run"
}
tried="this run's kernels were tried before its first step, and failed"
for n in 1 2; do
  # A product of probabilities reads V as if k were its contiguous dimension.
  told "a wrong attention kernel" "is what rounding explains" "--attention mma" $n 's/(ldmatrix.*)\.trans/\1/; s/ex2\.approx\.ftz\.f32 (%f[0-9]+), %f[0-9]+/mov.f32 \1, 0f3f800000/' --attention hopper
  # Consumers never say that a stage is empty.
  LLMC_SOFTGPU_HANG=1 told "a hanging attention kernel" "does not end: it had 10 s" "--attention mma" $n 's/mbarrier.arrive.shared::cta.b64 _, .*/;/' --attention hopper
  told "a crashing attention kernel" "$tried" "--attention plain" $n 's/mma.sync.aligned.*/trap;/' --attention mma
  # Quantization writes the second of each pair of numbers twice.
  told "a wrong quantization" "the FP8 product" "--fp8 off" $n 's/(cvt.rn.satfinite.e4m3x2.f32 %rs[0-9]+), (%f[0-9]+), [^;]*/\1, \2, \2/' --attention mma --fp8 tensorwise
done
check "right kernels pass" trains 1 's/none/none/' --attention hopper --fp8 tensorwise
echo "$checks checks passed"
