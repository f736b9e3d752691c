#!/usr/bin/env bash
# Covers: the house: a room includes only rooms below it, only three places ask which world they are in, PTX and shared
# variables stand in llmc/device alone
# Timeout: 30
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"

rooms=(base tokenizer device kernels comm config memory model data train predict run)
# Prints the includes that lead upwards, as lines "file: include".
upward() {
  local i j
  for i in "${!rooms[@]}"; do
    for ((j = i + 1; j < ${#rooms[@]}; j++)); do
      grep -rnE "#include \"llmc/${rooms[j]}/" "llmc/${rooms[i]}" || true
    done
  done
}
# Neighbours that do not know each other: the communicator and the kernels, data and what computes with it.
sideways() {
  grep -rnE '#include "llmc/kernels/' llmc/comm || true
  grep -rnE '#include "llmc/(model|memory)/' llmc/data || true
}
worlds() {
  grep -rnE '^ *# *(el)?if.*(LLMC_CUDA|LLMC_ON_GPU|LLMC_DEVICE_|LLMC_NCCL|LLMC_MPI|LLMC_OPENBLAS|__CUDA)' llmc ./*.cu |
    grep -vE '^llmc/(device|comm)/|^llmc/kernels/(cpu_|cuda_)?matmul' || true
}
hardware() { grep -rnE '\basm\b|__shared__|extern __' llmc ./*.cu | grep -vE '^llmc/device/' | grep -vE ':[0-9]+: *//' || true; }
long_files() { find llmc dev scripts Makefile ./*.cu -type f \( -name '*.h' -o -name '*.cuh' -o -name '*.cu' -o -name '*.cpp' -o -name '*.py' -o -name Makefile \) -exec wc -l {} + | awk '$2 != "total" && $1 > 620'; }

none() { # COMMAND: prints nothing
  local found
  found=$("$@")
  [ -z "$found" ] || { echo "$found" && return 1; }
}
check "no room includes a room above it" none upward
check "the communicator knows no kernels, and the data no model" none sideways
check "#if on the world only in llmc/device, llmc/comm and the products" none worlds
check "PTX and shared variables only in llmc/device" none hardware
check "no file of more than about 600 lines" none long_files

# Seen failing: the same looks at a tree with one of each mistake.
mkdir -p "$scratch/tree" && cp -r llmc dev scripts Makefile ./*.cu "$scratch/tree" && cd "$scratch/tree"
echo '#include "llmc/model/transformer.h"' >>llmc/base/text.h
echo '#include "llmc/kernels/rope.h"' >>llmc/comm/mesh.h
printf '#if LLMC_CUDA\n#endif\n' >>llmc/model/block.cpp
echo '__shared__ float x[2];' >>llmc/kernels/rope.cu
seq 621 >dev/kernels/long.cu
for look in upward sideways worlds hardware long_files; do check "a mistake is seen: $look" eval "! none $look >$scratch/seen"; done
echo "$checks checks passed"
