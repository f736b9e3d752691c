# check_cuda, same_program and kernel_budget source this file in the folder of the tree, after `set -euo pipefail`. It sets
# nvcc, its release, arches (those of ARCHES that this nvcc knows) and cuobjdump.
# shellcheck shell=bash
unset MAKEFLAGS MAKELEVEL MFLAGS
nvcc=${CUDA_HOME:+$CUDA_HOME/bin/}nvcc
command -v "$nvcc" >/dev/null || nvcc=/usr/local/cuda/bin/nvcc
[ -x "$(command -v "$nvcc")" ] || { echo "FAIL: no nvcc here (CUDA_HOME): nothing can be checked" && exit 1; }

release=$("$nvcc" --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
known=$("$nvcc" --list-gpu-arch)
arches=()
for arch in ${ARCHES:-80 90a 100}; do
  if grep -q "compute_${arch%[a-z]}\$" <<<"$known"; then arches+=("$arch"); else echo "left out: sm_$arch, which nvcc $release does not know"; fi
done

tools=build/disassembler
cuobjdump=$(command -v cuobjdump || true)
if [ -z "$cuobjdump" ]; then
  scripts/python_environment disassembler dev/test/disassembler/requirements.txt 100 || {
    echo "FAIL: no disassembler: neither cuobjdump on PATH nor the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm"
    exit 1
  }
  cuobjdump=$PWD/$(find "$tools/" -name cuobjdump | head -n 1)
  export PATH=$(dirname "$cuobjdump"):$PATH # it calls nvdisasm
fi

# compile_kernels TREE BUILD: for these architectures, with the words of make on standard output.
compile_kernels() {
  (cd "$1" && sources=(llmc/kernels/*.cu) && sources=("${sources[@]/#/$2/obj/}") &&
    make DEVICE=cuda ARCH="${arches[*]}" BUILD="$2" "${sources[@]/%/.o}" 2>&1)
}
