#!/usr/bin/env bash
# Covers: promise 2: tensor and context parallelism, with sharding, hybrid sharding and accumulation, by AdamW and Muon, train as one rank
# does: first loss, gradients, norm and 10 losses, on 2 and 4 (or 8) ranks, for odd vocabularies and shared key and value heads
# Timeout: 900
# Turn: 3
#
# MESHES=every: each combination, on 8 ranks too, and 20 losses; else each mesh, in stage 0 without and in stage 3 with
# accumulation, of Llamas, of one that Muon trains, and of two other families.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
mapfile -t models < <(printf '%s\n' qwen2-tied qwen3 ministral olmo2 | some_of 2)
for n in 2 4 ${MESHES:+8}; do
  if [ "${MESHES:-}" = every ]; then words=(every); else words=(llama llama-tied muon "${models[@]}"); fi
  limit=600 check "$n ranks train ${words[*]} as one" ranks "$n" "$build/test/meshes" "${words[@]}"
done
echo "$checks checks passed"
