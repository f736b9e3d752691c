#!/usr/bin/env bash
# Tries everything that wants a GPU, on a machine with one (nvcc and python3; PyTorch if it is to be compared with):
#
#   scripts/gpu_check.sh --seconds 560      in a call of at most 560 s; the next call goes on where this one ended
#   scripts/gpu_check.sh --list             names the checks, says what each proves and how it went here
#   scripts/gpu_check.sh kernels/matmul     runs this one (again); a part such as `kernels` stands for all of its checks
#   scripts/gpu_check.sh --help             names the other options
#
# The page that it ends with tells what works, what does not, and how fast the program is compared with its prediction.
# Page, figures and logs are in build/gpu_check/out after each check; state.json, next to it, is what the next call goes on
# with, so bring build/gpu_check along where each call gets a fresh machine.
# Without a GPU this is a rehearsal: the same checks at small sizes on the software GPU (dev/docs/gpu.md) if nvcc is here,
# else what a CPU can run of them in the CPU's build. CUDA_VISIBLE_DEVICES= in front rehearses where a GPU is.
# JSON_HOME, PCRE2_HOME, UTF8PROC_HOME and their like go through to make: a machine without a network needs them brought
# along.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
command -v python3 >/dev/null || { echo "scripts/gpu_check.sh: install python3 (3.9 or later)" >&2 && exit 1; }
exec python3 -u scripts/gpu_check "$@"
