#!/usr/bin/env bash
# Covers: finding things: which device and why, each dependency missing, wheels, MPICH, remedies, installing as root or not
# Timeout: 120
# Turn: 2
#
# Works on a copy of scripts/doctor in a folder of its own; what is not to be found is hidden by homes that do not exist,
# what is not here is played by small scripts in front of PATH.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
mkdir -p "$scratch/scripts" "$scratch/bin"
cp "$root/scripts/doctor" "$scratch/scripts/"
cd "$scratch"
unset DEVICE ARCH CXX SANITIZE CUDA_HOME NCCL_HOME MPI_HOME OPENBLAS_HOME BOOST_HOME PCRE2_HOME UTF8PROC_HOME MINJA_HOME \
  CONDA_PREFIX
PATH=$scratch/bin:$PATH

play() { # NAME BODY: a program of that name in front of PATH
  printf '#!/bin/sh\n%s\n' "$2" >"bin/$1"
  chmod +x "bin/$1"
}
# doctor CODE [NAME=VALUE…] VERB… [-- TEXT…]: it ends with that code, and each text stands in its output or in the summary.
# "mk PATTERN": config.mk has it; "! TEXT", "! mk PATTERN": not so.
doctor() {
  local code=$1 settings=() verbs=() text
  while shift && [ $# -gt 0 ] && [ "$1" != -- ]; do
    if [[ $1 == *=* ]]; then settings+=("$1"); else verbs+=("$1"); fi
  done
  check "doctor ${verbs[*]} ${settings[*]//$scratch\//}" exits "$code" env "${settings[@]}" scripts/doctor "${verbs[@]}"
  variant=$(tail -n 1 out.txt)
  if [ -f "build/$variant/summary.txt" ]; then cat "build/$variant/summary.txt" >>out.txt; fi
  while shift && [ $# -gt 0 ]; do
    text=${1#! }
    case $1 in
      "mk "*) check "  $1" grep -q -e "${text#mk }" "build/$variant/config.mk" ;;
      "! mk "*) check "  $1" not grep -q -e "${text#mk }" "build/$variant/config.mk" ;;
      "! "*) check "  $1" not grep -qF -e "$text" out.txt ;;
      *) check "  $1" said "$1" ;;
    esac
  done
}
cpu() { doctor "$1" DEVICE=cpu "${@:2}"; }

play nvidia-smi 'exit 9'
cpu 0 configure -- "because DEVICE=cpu asks for it" "mk ^DEFINES :=.* -DLLMC_MPI=1"
check "the variant is printed" [ "$variant" = cpu ]
cpu 0 SANITIZE=address configure
check "variants have folders of their own" [ "$variant" = cpu-address ]

echo "-- what may be missing, and what may not"
cpu 0 OPENBLAS_HOME=/nowhere configure -- "✗ OpenBLAS       plain matrix products" "not under OPENBLAS_HOME=/nowhere" \
  "apt-get install libopenblas-dev   or: conda install -c conda-forge openblas" "! mk LLMC_OPENBLAS"
cpu 0 MPI_HOME=/nowhere configure -- "✗ MPI            one rank only" "! mk LLMC_MPI"
cpu 1 BOOST_HOME=/nowhere configure -- "Cannot build without Boost.Context" "apt-get install libboost-context-dev" \
  "conda install -c conda-forge libboost-devel"
cpu 1 JSON_HOME=/nowhere configure -- "Cannot build without nlohmann-json"
cpu 1 PCRE2_HOME=/nowhere configure -- "Cannot build without PCRE2" "not under PCRE2_HOME=/nowhere" \
  "apt-get install libpcre2-dev   or: conda install -c conda-forge pcre2"
cpu 1 UTF8PROC_HOME=/nowhere configure -- "Cannot build without utf8proc" "not under UTF8PROC_HOME=/nowhere" \
  "apt-get install libutf8proc-dev   or: conda install -c conda-forge libutf8proc"
cpu 0 MINJA_HOME=/nowhere configure -- "✗ minja          no --chat" "not under MINJA_HOME=/nowhere" "scripts/get_minja" "! mk LLMC_MINJA"
mkdir -p build/minja/include/minja && touch build/minja/include/minja/minja.hpp
cpu 0 configure -- "✓ minja          its header (build/minja/include/minja/minja.hpp)" "mk ^MINJA := -DLLMC_MINJA=1 -isystem build/minja/include$"
mkdir -p clone && mv build/minja/include clone
cpu 0 MINJA_HOME="$scratch/clone" configure -- "mk ^MINJA := -DLLMC_MINJA=1 -isystem $scratch/clone/include$" "! mk ^DEFINES.*MINJA"
cpu 1 CXX=/nowhere/c++ configure -- "✗ compiler       nothing can be compiled [CXX=/nowhere/c++ compiles no C++20]"
doctor 1 DEVICE=tpu configure -- "DEVICE=tpu is unknown: cuda or cpu"
cpu 1 SANITIZE=adress configure -- "SANITIZE=adress"

# MPICH's wrapper knows -show only.
mpi_include=$(mpicxx --showme:incdirs | cut -d' ' -f1)
mpi_lib=$(mpicxx --showme:libdirs | cut -d' ' -f1)
mkdir -p mpich/bin
play mpicxx "[ \"\$1\" = -show ] || exit 1; echo 'g++ -Wl,-z,relro -I$mpi_include -L$mpi_lib -lmpi_cxx -lmpi'"
mv bin/mpicxx mpich/bin
cpu 0 MPI_HOME="$scratch/mpich" configure -- "mk ^INCLUDES := .*-isystem $mpi_include .*-DMPICH_SKIP_MPICXX=1" "! mk mpi_cxx"

# PCRE2 where only its own programs know: the compiler finds it nowhere else.
mkdir -p pcre2/{include,lib}
headers=$(echo '#include <pcre2.h>' | g++ -E -x c++ -DPCRE2_CODE_UNIT_WIDTH=8 - | sed -n 's/^# 1 "\(.*\/pcre2.h\)".*/\1/p')
cp "${headers%%$'\n'*}" pcre2/include/
cp "$(g++ -print-file-name=libpcre2-8.so)" pcre2/lib/libpcre2-8.so.0
ln -s libpcre2-8.so.0 pcre2/lib/libpcre2-8.so
play g++ "case \"\$*\" in *-L$scratch/pcre2/lib*) ;; *-lpcre2-8*) exit 1 ;; esac; exec /usr/bin/g++ \"\$@\""
for program in pkg-config pcre2-config; do
  play pkg-config 'exit 1'
  play pcre2-config 'exit 1'
  play "$program" "echo -I$scratch/pcre2/include -L$scratch/pcre2/lib -lpcre2-8"
  cpu 0 configure -- "($program)" "mk ^LIBS := .*-L$scratch/pcre2/lib -Wl,-rpath,$scratch/pcre2/lib -lpcre2-8" \
    "mk ^INCLUDES := .*-isystem $scratch/pcre2/include"
done
rm bin/{pkg-config,pcre2-config}

# A compiler that takes no time stands in from here on: it compiles all into a program that prints 1.
# shellcheck disable=SC2016  # it expands its own variables
play g++ 'echo called >>calls
echo "#define NLOHMANN_JSON_VERSION_MAJOR 3"
echo "#define DOCTEST_VERSION_MAJOR 2"
while [ $# -gt 1 ]; do
  if [ "$1" = -o ]; then printf "#!/bin/sh\necho 1\n" >"$2" && chmod +x "$2"; fi
  shift
done'
echo "-- answers are kept until something changes"
probed() { rm calls 2>/dev/null; }
cpu 0 configure
check "a compiler that has changed is probed" probed
cpu 0 configure
check "asked again it probes nothing" not probed
cpu 0 OPENBLAS_HOME=/nowhere configure
check "another home is probed" probed
cpu 0 report -- "✓ Boost.Context"
check "the report probes" probed

echo "-- a toolkit, and CUDA's libraries as Python's wheels; nothing of it is run but nvcc --version"
toolkit() { # VERSION
  mkdir -p cuda/bin cuda/include cuda/lib64
  play nvcc "echo 'Cuda compilation tools, release $1, V$1.1'"
  mv bin/nvcc cuda/bin
  touch cuda/include/{cublasLt.h,cuda_runtime.h} cuda/lib64/{libcublasLt.so.12,libcudart_static.a}
}
cuda() { doctor "$1" CUDA_HOME="$scratch/cuda" "${@:2}"; }
play python3 "echo $scratch/wheels/nvidia"
toolkit 12.6
cuda 0 configure -- "nvcc 12.6 is here but no usable GPU; to build for one: make DEVICE=cuda ARCH=90a"
check "nvcc without a GPU builds the CPU's" [ "$variant" = cpu ]
cuda 0 DEVICE=cuda NCCL_HOME=/nowhere configure -- "✗ NCCL           one GPU only" "mk ^ARCH := 90a$" \
  "mk ^LIBS := .*$scratch/cuda/lib64/libcublasLt.so.12"
check "DEVICE=cuda forces it" [ "$variant" = cuda ]
mkdir -p wheels/nvidia/{nccl,cublas}/{include,lib}
printf '#define NCCL_%s\n' "MAJOR 2" "MINOR 28" "PATCH 9" >wheels/nvidia/nccl/include/nccl.h
touch wheels/nvidia/nccl/lib/libnccl.so.2
nccl=$scratch/wheels/nvidia/nccl
cuda 0 DEVICE=cuda NCCL_HOME="$nccl" configure -- "✓ NCCL           2.28.9" \
  "mk ^LIBS := .*$nccl/lib/libnccl.so.2 -Wl,-rpath,$nccl/lib"
mv cuda/lib64/libcublasLt.so.12 cuda/lib64/hidden
cuda 1 DEVICE=cuda configure -- "Cannot build without cuBLASLt"
touch wheels/nvidia/cublas/include/cublasLt.h wheels/nvidia/cublas/lib/libcublasLt.so.12
cuda 0 DEVICE=cuda configure -- "mk wheels/nvidia/cublas/lib/libcublasLt.so.12"
mv cuda/lib64/hidden cuda/lib64/libcublasLt.so.12
while read -r version has_them; do
  paste -d' ' <(printf '#define CUBLAS_VER_%s\n' MAJOR MINOR PATCH) <(tr . '\n' <<<"$version") >cuda/include/cublas_api.h
  cuda 0 DEVICE=cuda report -- "✓ cuBLASLt       $version" \
    "${has_them:+! }--fp8 rowwise, rowwise-hp-wgrad and blockwise are not in it: 12.9 or later has them"
done <<<$'12.8.5\n12.9.0 yes\n13.0.2 yes'
toolkit 11.8
cuda 1 DEVICE=cuda configure -- "is version 11.8; 12.4 or later is needed" "make DEVICE=cuda CUDA_HOME=/path/to/cuda"
doctor 1 DEVICE=cuda CUDA_HOME=/nowhere configure -- \
  "DEVICE=cuda needs nvcc 12.4 or later, and found none (no CUDA_HOME=/nowhere/bin/nvcc)"

echo "-- with a GPU"
gpu() { # CAPABILITIES
  play nvidia-smi "case \$1 in -L) echo 'GPU 0: NVIDIA H200 (UUID: GPU-1)';; *) printf '$1\\n';; esac"
}
toolkit 13.0
for pair in '9.0:90a' '9.0\n9.0:90a' '10.0:100a' '8.9:89' '8.0\n9.0:80 90a'; do
  gpu "${pair%:*}"
  cuda 0 report -- "because nvcc 13.0 and NVIDIA H200 are here" "architecture ${pair#*:},"
done
cuda 0 ARCH=100a report -- "architecture 100a,"
doctor 0 CUDA_HOME=/nowhere report -- "NVIDIA H200 is here BUT NO nvcc 12.4 or later"
cuda 0 DEVICE=cpu report -- "DEVICE=cpu asks for it, though NVIDIA H200 is here"
toolkit 11.8
cuda 0 report -- "NVIDIA H200 is here BUT NO nvcc 12.4 or later ($scratch/cuda/bin/nvcc is version 11.8; 12.4 or later is needed)"
play nvidia-smi 'exit 9'

echo "-- installing"
# shellcheck disable=SC2016  # it expands its own variables
play apt-get 'echo "apt-get $*" >>installed'
play id 'echo 0'
cpu 0 BOOST_HOME=/nowhere MPI_HOME=/nowhere install test
check "root on Debian gets what is missing" grep -q 'install .*libboost-context-dev.* libopenmpi-dev openmpi-bin' installed
check "without a question" grep -q ' -y ' installed
cpu 0 PCRE2_HOME=/nowhere UTF8PROC_HOME=/nowhere install build
check "a build's libraries, too" grep -q 'install .*libpcre2-dev libutf8proc-dev' installed
rm installed
play id 'echo 1000'
cpu 1 BOOST_HOME=/nowhere install build -- "apt-get install libboost-context-dev" "stopped: Boost.Context must be installed first"
cpu 0 OPENBLAS_HOME=/nowhere install build -- "Going on without: OpenBLAS (plain matrix products"
cpu 1 MPI_HOME=/nowhere install test -- "stopped: MPI must be installed first"
check "nothing was installed" [ ! -e installed ]
cpu 0 install test
check "nothing missing, nothing said" [ ! -s out.txt ]
echo "$checks checks passed"
