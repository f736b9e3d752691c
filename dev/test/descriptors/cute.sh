#!/usr/bin/env bash
# Holds golden.tsv against CuTe (make test-descriptors): compiles golden.cpp with the headers of the Python package
# nvidia-cutlass, kept in build/descriptors, and CUDA's. Needs no GPU. To take over what CuTe says:
#   dev/test/descriptors/cute.sh --write
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../../.."
here=dev/test/descriptors cuda=${CUDA_HOME:-/usr/local/cuda}
case "$#:${1:-}" in
  0: | 1:--write) ;;
  *) echo "usage: $here/cute.sh [--write]" >&2 && exit 2 ;;
esac

if ! [ -f "$cuda/include/cuda_runtime.h" ]; then
  echo "cute.sh: CuTe needs CUDA's headers, and $cuda/include has none: say where CUDA is with CUDA_HOME" >&2
  exit 1
fi
scripts/python_environment descriptors "$here/requirements.txt" 350
package=$(build/descriptors/bin/python -c 'import importlib.util as u; print(u.find_spec("cutlass_library").origin)')
cute=$(dirname "$package")/source/include

mkdir -p build/test-logs
output=build/test-logs/golden.tsv
# In CUDA 13 the C++ headers that CuTe includes have a folder of their own.
"${CXX:-g++}" -std=c++20 -O1 -isystem "$cute" -isystem "$cuda/include" -isystem "$cuda/include/cccl" $here/golden.cpp \
  -o build/descriptors/golden
build/descriptors/golden >$output
if [ "${1:-}" = --write ]; then
  cp $output $here/golden.tsv
elif ! diff $here/golden.tsv $output; then
  echo "$here/golden.tsv (<) is not what CuTe says (>)" >&2
  exit 1
fi
release=$(build/descriptors/bin/python -m pip freeze | grep '^nvidia-cutlass=')
echo "$(($(wc -l <$output) - 1)) descriptors are those of CuTe in $release"
