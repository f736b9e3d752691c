#!/usr/bin/env bash
# Covers: finding things: which device and why, each dependency missing, wheels, MPICH, remedies, installing as root or not
# Timeout: 120
# shellcheck disable=SC2016  # the little programs expand their own variables
#
# Works on a copy of scripts/doctor in a folder of its own; what is not to be found is hidden by homes that do not exist,
# what is not here is played by small scripts in front of PATH.
set -euo pipefail
root=$(cd "$(dirname "$0")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/scripts" "$scratch/bin"
cp "$root/scripts/doctor" "$scratch/scripts/"
cd "$scratch"
unset DEVICE ARCH CXX FAULTS SANITIZE CUDA_HOME NCCL_HOME MPI_HOME OPENBLAS_HOME BOOST_HOME PCRE2_HOME CONDA_PREFIX
checks=0

check() { # WHAT COMMAND...
  checks=$((checks + 1))
  if "${@:2}"; then return; fi
  echo "doctor: $1: not so. The output was:"
  cat out
  exit 1
}
says() { grep -qF -e "$1" out; }
says_not() { ! says "$1"; }
config() { grep -q -e "$1" "build/$variant/config.mk"; }
config_not() { ! config "$1"; }
play() { # NAME BODY: a program of that name in front of PATH
  printf '#!/bin/sh\n%s\n' "$2" >"bin/$1"
  chmod +x "bin/$1"
}
unplay() { rm -f "${@/#/bin/}"; }
# doctor CODE [NAME=VALUE...] ARGUMENTS...
doctor() {
  local code=0 expected=$1
  shift
  env PATH="$scratch/bin:$PATH" "${@:1:$#-1}" scripts/doctor ${!#} >out 2>&1 || code=$?
  check "scripts/doctor $* ends with code $expected (it was $code)" [ "$code" = "$expected" ]
  variant=$(tail -n 1 out)
  if [ -f "build/$variant/summary.txt" ]; then cat "build/$variant/summary.txt" >>out; fi
}

play nvidia-smi 'exit 9'

doctor 0 DEVICE=cpu configure
check "the variant is printed" [ "$variant" = cpu ]
check "it is for the CPU because it was asked for" says "because DEVICE=cpu asks for it"
check "MPI was found" config '^DEFINES :=.* -DLLMC_MPI=1'
doctor 0 DEVICE=cpu FAULTS=1 SANITIZE=address configure
check "variants have folders of their own" [ "$variant" = cpu-faults-address ]

# What may be missing, and what may not.
doctor 0 DEVICE=cpu OPENBLAS_HOME=/nowhere configure
check "no OpenBLAS is said loudly" says "✗ OpenBLAS       plain matrix products"
check "with where it was looked for" says "not under OPENBLAS_HOME=/nowhere"
check "with the remedies" says "apt-get install libopenblas-dev   or: conda install -c conda-forge openblas"
check "the build goes on without it" config_not LLMC_OPENBLAS
doctor 0 DEVICE=cpu MPI_HOME=/nowhere configure
check "no MPI is said loudly" says "✗ MPI            one rank only"
check "the build goes on without it" config_not LLMC_MPI
doctor 1 DEVICE=cpu BOOST_HOME=/nowhere configure
check "no Boost stops" says "Cannot build without Boost.Context"
check "with one line for apt" says "apt-get install libboost-context-dev"
check "and one for conda" says "conda install -c conda-forge libboost-devel"
doctor 1 DEVICE=cpu JSON_HOME=/nowhere configure
check "no JSON stops" says "Cannot build without nlohmann-json"
doctor 1 DEVICE=cpu PCRE2_HOME=/nowhere configure
check "no PCRE2 stops" says "Cannot build without PCRE2"
check "with where it was looked for" says "not under PCRE2_HOME=/nowhere"
check "with the remedies" says "apt-get install libpcre2-dev   or: conda install -c conda-forge pcre2"
doctor 1 DEVICE=cpu CXX=/nowhere/c++ configure
check "no compiler stops" says "✗ compiler       nothing can be compiled [CXX=/nowhere/c++ compiles no C++20]"
doctor 1 DEVICE=tpu configure
check "unknown devices are refused" says "DEVICE=tpu is unknown: cuda or cpu"
doctor 1 SANITIZE=adress DEVICE=cpu configure
check "unknown sanitizers are refused" says "SANITIZE=adress"

# MPICH's wrapper knows -show only.
mpi_include=$(mpicxx --showme:incdirs | cut -d' ' -f1)
mpi_lib=$(mpicxx --showme:libdirs | cut -d' ' -f1)
mkdir -p mpich/bin
printf '#!/bin/sh\n[ "$1" = -show ] || exit 1\necho "g++ -Wl,-z,relro -I%s -L%s -lmpi_cxx -lmpi"\n' "$mpi_include" "$mpi_lib" >mpich/bin/mpicxx
chmod +x mpich/bin/mpicxx
doctor 0 DEVICE=cpu MPI_HOME="$scratch/mpich" configure
check "-show's flags are used" config "^INCLUDES := .*-isystem $mpi_include .*-DMPICH_SKIP_MPICXX=1"
check "but not the C++ bindings" config_not mpi_cxx

# PCRE2 where only its own programs know: the compiler finds it nowhere else.
mkdir -p pcre2/{include,lib}
cp "$(echo '#include <pcre2.h>' | g++ -E -x c++ -DPCRE2_CODE_UNIT_WIDTH=8 - | sed -n 's/^# 1 "\(.*\/pcre2.h\)".*/\1/p' | head -n 1)" pcre2/include/
cp "$(g++ -print-file-name=libpcre2-8.so)" pcre2/lib/libpcre2-8.so.0
ln -s libpcre2-8.so.0 pcre2/lib/libpcre2-8.so
play g++ "case \"\$*\" in *-L$scratch/pcre2/lib*) ;; *-lpcre2-8*) exit 1 ;; esac; exec /usr/bin/g++ \"\$@\""
for program in pkg-config pcre2-config; do
  play pkg-config 'exit 1'
  play pcre2-config 'exit 1'
  play "$program" "echo -I$scratch/pcre2/include -L$scratch/pcre2/lib -lpcre2-8"
  doctor 0 DEVICE=cpu configure
  check "$program tells where PCRE2 is" says "($program)"
  check "and its flags are used" config "^LIBS := .*-L$scratch/pcre2/lib -Wl,-rpath,$scratch/pcre2/lib -lpcre2-8"
  check "headers as the system's" config "^INCLUDES := .*-isystem $scratch/pcre2/include"
done
unplay pkg-config pcre2-config g++

# Answers are kept until something changes.
play g++ 'echo called >>calls; exec /usr/bin/g++ "$@"'
doctor 0 DEVICE=cpu configure
rm -f calls
doctor 0 DEVICE=cpu configure
check "asked again it probes nothing" [ ! -e calls ]
doctor 0 DEVICE=cpu OPENBLAS_HOME=/nowhere configure
check "another home is probed" [ -e calls ]
rm -f calls
doctor 0 DEVICE=cpu report
check "the report probes" [ -e calls ]
check "the report says what is there" says "✓ Boost.Context"
unplay g++

# A toolkit, and CUDA's libraries as Python's wheels. Nothing of it is run but nvcc --version.
toolkit() { # VERSION
  mkdir -p cuda/bin cuda/include cuda/lib64
  printf '#!/bin/sh\necho "Cuda compilation tools, release %s, V%s.1"\n' "$1" "$1" >cuda/bin/nvcc
  chmod +x cuda/bin/nvcc
  touch cuda/include/{cublasLt.h,cuda_runtime.h} cuda/lib64/{libcublasLt.so.12,libcudart_static.a}
}
play python3 "echo $scratch/wheels/nvidia"
toolkit 12.6
doctor 0 CUDA_HOME="$scratch/cuda" configure
check "nvcc without a GPU builds the CPU's" [ "$variant" = cpu ]
check "and says how to build for one" says "nvcc 12.6 is here but no usable GPU; to build for one: make DEVICE=cuda ARCH=90a"
doctor 0 DEVICE=cuda CUDA_HOME="$scratch/cuda" NCCL_HOME=/nowhere configure
check "DEVICE=cuda forces it" [ "$variant" = cuda ]
check "no NCCL is said" says "✗ NCCL           one GPU only"
check "the default architecture" config '^ARCH := 90a$'
check "libraries by full name" config "^LIBS := .*$scratch/cuda/lib64/libcublasLt.so.12"
mkdir -p wheels/nvidia/nccl/{include,lib}
printf '#define NCCL_MAJOR 2\n#define NCCL_MINOR 28\n#define NCCL_PATCH 9\n' >wheels/nvidia/nccl/include/nccl.h
touch wheels/nvidia/nccl/lib/libnccl.so.2
doctor 0 DEVICE=cuda CUDA_HOME="$scratch/cuda" NCCL_HOME="$scratch/wheels/nvidia/nccl" configure
check "NCCL's wheel is linked by full name, with rpath" config \
  "^LIBS := .*$scratch/wheels/nvidia/nccl/lib/libnccl.so.2 -Wl,-rpath,$scratch/wheels/nvidia/nccl/lib"
check "and its version read" says "✓ NCCL           2.28.9"
mv cuda/lib64/libcublasLt.so.12 cuda/lib64/hidden
doctor 1 DEVICE=cuda CUDA_HOME="$scratch/cuda" configure
check "no cuBLASLt stops" says "Cannot build without cuBLASLt"
mkdir -p wheels/nvidia/cublas/{include,lib}
touch wheels/nvidia/cublas/include/cublasLt.h wheels/nvidia/cublas/lib/libcublasLt.so.12
doctor 0 DEVICE=cuda CUDA_HOME="$scratch/cuda" configure
check "cuBLASLt's wheel will do" config "wheels/nvidia/cublas/lib/libcublasLt.so.12"
mv cuda/lib64/hidden cuda/lib64/libcublasLt.so.12
for version in 12.8.5:no 12.9.0:every 13.0.2:every; do
  IFS=. read -r major minor patch <<<"${version%:*}"
  printf '#define CUBLAS_VER_MAJOR %s\n#define CUBLAS_VER_MINOR %s\n#define CUBLAS_VER_PATCH %s\n' "$major" "$minor" "$patch" \
    >cuda/include/cublas_api.h
  doctor 0 DEVICE=cuda CUDA_HOME="$scratch/cuda" report
  check "cuBLASLt's version is that of its header" says "✓ cuBLASLt       ${version%:*}"
  remark="--fp8 rowwise, rowwise-hp-wgrad and blockwise are not in it: 12.9 or later has them"
  if [ "${version#*:}" = no ]; then check "an old one's missing recipes are told" says "$remark"; else check "and not of others" says_not "$remark"; fi
done
toolkit 11.8
doctor 1 DEVICE=cuda CUDA_HOME="$scratch/cuda" configure
check "an old toolkit is refused" says "is version 11.8; 12.4 or later is needed"
check "with the way out" says "make DEVICE=cuda CUDA_HOME=/path/to/cuda"
doctor 1 DEVICE=cuda CUDA_HOME=/nowhere configure
check "no toolkit is said" says "DEVICE=cuda needs nvcc 12.4 or later, and found none (no CUDA_HOME=/nowhere/bin/nvcc)"

# With a GPU.
gpu() { # CAPABILITIES
  play nvidia-smi "case \$1 in -L) echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)';; *) printf '$1\\n';; esac"
}
toolkit 13.0
for pair in '9.0:90a' '9.0\n9.0:90a' '10.0:100a' '8.9:89' '8.0\n9.0:80 90a'; do
  gpu "${pair%:*}"
  doctor 0 "CUDA_HOME=$scratch/cuda" report
  check "nvcc and a GPU are chosen" says "because nvcc 13.0 and NVIDIA H200 are here"
  check "capability ${pair%:*} is architecture ${pair#*:}" says "architecture ${pair#*:},"
done
doctor 0 "CUDA_HOME=$scratch/cuda" ARCH=100a report
check "ARCH counts more than the GPU" says "architecture 100a,"
doctor 0 CUDA_HOME=/nowhere report
check "a GPU without nvcc is said loudly" says "NVIDIA H200 is here BUT NO nvcc 12.4 or later"
toolkit 11.8
doctor 0 "CUDA_HOME=$scratch/cuda" report
check "a GPU with an old nvcc too" says "NVIDIA H200 is here BUT NO nvcc 12.4 or later ($scratch/cuda/bin/nvcc is version 11.8; 12.4 or later is needed)"
toolkit 13.0
doctor 0 DEVICE=cpu "CUDA_HOME=$scratch/cuda" report
check "DEVICE=cpu forces it" says "DEVICE=cpu asks for it, though NVIDIA H200 is here"
play nvidia-smi 'exit 9'

# Installing.
play apt-get 'echo "apt-get $*" >>installed'
play id 'echo 0'
doctor 0 DEVICE=cpu BOOST_HOME=/nowhere MPI_HOME=/nowhere "install test"
check "root on Debian gets what is missing" grep -q 'install .*libboost-context-dev.* libopenmpi-dev openmpi-bin' installed
check "without a question" grep -q ' -y ' installed
rm installed
doctor 0 DEVICE=cpu PCRE2_HOME=/nowhere "install build"
check "a build's library too" grep -q 'install .*libpcre2-dev' installed
rm installed
play id 'echo 1000'
doctor 1 DEVICE=cpu BOOST_HOME=/nowhere "install build"
check "others get the lines" says "apt-get install libboost-context-dev"
check "and a stop" says "stopped: Boost.Context must be installed first"
doctor 0 DEVICE=cpu OPENBLAS_HOME=/nowhere "install build"
check "optional parts stop nobody" says "Going on without: OpenBLAS (plain matrix products"
doctor 1 DEVICE=cpu MPI_HOME=/nowhere "install test"
check "the tests need MPI" says "stopped: MPI must be installed first"
check "nothing was installed" [ ! -e installed ]
doctor 0 DEVICE=cpu "install test"
check "nothing missing, nothing said" [ ! -s out ]
echo "doctor: $checks checks passed"
