# The checks that are tried on wrong programs, in addition to the tests' own programs and scripts. A check fails if it notices.
# Those that compare with the right program keep what that one gave in the folder $FIGURES: the right program runs first.
# shellcheck shell=bash
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source dev/test/lib.bash
# shellcheck disable=SC2034  # the checks of cuda.txt name it
softgpu=$root/build/softgpu
heads_model >"$scratch/heads.json"
steps=(--steps 3 --micro-batch 8 --seq-len 64 --head-chunk 128 --val-every 0 --sample-every 0 --export off --comm-timeout 20)

# same_as_right NAME FILE: the file is what the right program gave under this name.
same_as_right() {
  mkdir -p "$(dirname "$FIGURES/$1")"
  [ -e "$FIGURES/$1" ] || cp "$2" "$FIGURES/$1"
  cmp -s "$FIGURES/$1" "$2" || { echo "differs: $(diff -a "$FIGURES/$1" "$2" | grep -am1 '^>')" && return 1; }
}

# same_figures RANKS OPTIONS…: losses and norms of gradients of a short training by $train.
same_figures() {
  local limit=200 name
  rm -rf "$scratch/run"
  name=$(cksum <<<"${train#"$root"} ${*//$scratch/}")
  ranks "$1" "$train" "${steps[@]}" "${@:2}" --out "$scratch/run" || return 1
  sed -n 's/.*\("step":[0-9]*,"loss":[^,]*,\).*\("grad_norm":[^,]*\).*/\1\2/p' "$scratch/run/train.jsonl" >"$scratch/figures"
  same_as_right "${name%% *}" "$scratch/figures"
}

# same_training NAME: the same of one of these.
same_training() {
  local heads=(--global-batch 32 --model "$scratch/heads.json") block=(--global-batch 32 --layers 2)
  case $1 in
    tensor) same_figures 2 --tensor-parallel-degree 2 "${heads[@]}" ;;
    heads) same_figures 4 --tensor-parallel-degree 4 "${block[@]}" ;; # two ranks each have the same key and value heads
    fp8) same_figures 2 --tensor-parallel-degree 2 "${heads[@]}" --dtype bf16 --fp8 tensorwise ;;
    # The backward pass gathers and quantizes weights again.
    fp8_sharded) same_figures 4 --tensor-parallel-degree 2 --zero-stage 3 "${heads[@]}" --layers 6 --dtype bf16 --fp8 tensorwise ;;
    context) same_figures 2 --context-parallel-degree 2 --zero-stage 3 "${heads[@]}" ;;
    mesh) same_figures 4 --tensor-parallel-degree 2 --context-parallel-degree 2 "${block[@]}" ;;
    sharded) same_figures 4 --context-parallel-degree 2 --zero-stage 3 "${block[@]}" ;;
    muon) same_figures 2 --zero-stage 3 "${heads[@]}" --optimizer muon ;;
    muon_tensor) same_figures 4 --tensor-parallel-degree 2 --zero-stage 1 "${heads[@]}" --optimizer muon ;;
    muon_fp8) same_figures 2 --zero-stage 3 "${heads[@]}" --optimizer muon --dtype bf16 --fp8 tensorwise ;;
    hybrid) same_figures 4 --hybrid-shard-degree 2 --zero-stage 3 "${block[@]}" ;;
  esac
}

# same_bits RANKS [STAGE]: the export and the checkpoints of a short training.
same_bits() {
  local out=$scratch/run file
  ranks "$1" "$train" --layers 3 --steps 4 --global-batch 4 --micro-batch 1 --seq-len 32 --val-every 2 --sample-every 2 \
    --sample-tokens 5 --checkpoint-every 1 --zero-stage "${2:-0}" --out "$out" || return 1
  for file in export/model.safetensors $(cd "$out" && ls checkpoints/step-*/rank-*); do
    same_as_right "bits$1-${2:-0}/$file" "$out/$file" || return 1
  done
}

# same_snapshot: a checkpoint that $train writes while it goes on training, of a state in the memory of the host.
same_snapshot() {
  rm -rf "$scratch/run"
  "$train" --layers 3 --steps 3 --global-batch 4 --micro-batch 1 --seq-len 32 --val-every 0 --sample-every 0 --export off \
    --checkpoint-every 2 --offload-optimizer --out "$scratch/run" || return 1
  same_as_right "snapshot/${train#"$root/"}" "$scratch/run/checkpoints/step-00000002/rank-00000-of-00001.safetensors"
}

# checks_of FILE: the checks that may notice that a synchronisation of the file is skipped, a line each.
# shellcheck disable=SC2016  # they are expanded when they run
checks_of() {
  local noun model="--global-batch 8 --model \$scratch/heads.json"
  case $1 in
    llmc/kernels/tuning.*) echo '$build/kernels/matmul check' ;;
    llmc/kernels/column_sums.*) printf '%s\n' '$build/kernels/rmsnorm check' '$build/kernels/qk_norm_rope check' ;;
    llmc/kernels/attention_hopper*)
      echo '$build/kernels/attention_hopper check' # no CPU's training runs it
      return
      ;;
    llmc/kernels/*)
      noun=$(basename "${1%.*}")
      while [ ! -e "dev/kernels/$noun.cu" ] && [[ $noun == *_* ]]; do noun=${noun%_*}; done
      echo "\$build/kernels/$noun check"
      case $1 in */quantize.cu | */byte_tile.cuh) echo '$build/kernels/transpose_quantized check' ;; esac
      [[ $noun != quantize* ]] || echo 'ranks 2 $build/test/fp8_ranks same'
      ;;
    llmc/comm/*)
      echo '$build/test/comm'
      echo 'ranks 2 $build/test/comm'
      ;;
    llmc/memory/activation_store.*) echo '$build/test/activation_policies pairs' ;;
    llmc/memory/optimizer_state.* | llmc/memory/gradient_store.* | llmc/memory/slots.* | llmc/memory/sweep.* | llmc/memory/snapshot.*)
      echo '$build/test/state_choices some'
      echo 'ranks 2 $build/test/state_choices some'
      ;;
    llmc/memory/parameter_store.* | llmc/memory/fp8_weights.*)
      echo "same_figures 2 $model --tensor-parallel-degree 2 --dtype bf16 --fp8 tensorwise"
      ;;
    llmc/memory/fp8_scales.* | llmc/memory/fp8_*) echo 'ranks 2 $build/test/fp8_ranks same' ;;
    llmc/model/attention.* | llmc/model/context_*)
      echo "same_figures 2 $model --context-parallel-degree 2"
      echo 'ranks 2 $build/test/meshes llama llama-tied olmo2'
      return
      ;;
    llmc/model/*)
      echo "same_figures 2 $model --tensor-parallel-degree 2"
      echo "same_figures 2 $model --tensor-parallel-degree 2 --dtype bf16 --fp8 tensorwise"
      echo "same_figures 2 $model --tensor-parallel-degree 2 --dtype bf16 --fp8 rowwise --fp8-head on --recompute block"
      echo 'ranks 2 $build/test/meshes llama llama-tied olmo2'
      return
      ;;
    llmc/model/transformer.*) echo "same_figures 2 $model --tensor-parallel-degree 2" ;;
    llmc/train/muon.*)
      printf 'same_figures %d --optimizer muon --global-batch 16 --model $scratch/heads.json %s\n' 2 '--zero-stage 3' 1 ''
      return
      ;;
    llmc/train/trainer_verify.* | llmc/train/bit_hashes.*)
      echo 'dev/test/verify.sh'
      return
      ;;
    llmc/train/trainer.* | llmc/train/trainer_state.*)
      echo '$build/test/step_graphs some'
      echo 'ranks 2 $build/test/step_graphs some'
      echo 'same_figures 2 --global-batch 16 --gpu-every 1'
      ;;
  esac
  printf '%s\n' "same_bits 1" "same_bits 2" "same_bits 2 3" "same_bits 2 1" 'ranks 2 $build/test/fp8_ranks same' \
    '$build/test_llama dev/reference/dumps/tied --dtype fp32'
}
