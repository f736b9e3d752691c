#!/usr/bin/env bash
# Covers: scripts/gpu_check.sh: order, limits, what hangs, crashes or fails and what follows from it, resumption, its page
# Timeout: 240
# Alone: checks have limits of a few seconds
#
# Stand-ins take the place of the programs, the compiler and the GPU. Some misbehave as a first GPU might make them.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"

tree=$scratch/tree stand_in=$scratch/bin
mkdir -p "$tree/dev/bench" "$tree/dev/reference" "$tree/llmc" "$tree/scripts" "$stand_in"
cp -r "$root/scripts/gpu_check.sh" "$root/scripts/gpu_check" "$tree/scripts"
cp -r "$root/dev/reference/dumps" "$tree/dev/reference"
mkdir "$tree/dev/kernels"
for kernel in "$root"/dev/kernels/*.cu; do touch "$tree/dev/kernels/$(basename "$kernel")"; done
touch "$tree/Makefile" "$tree/train_llama.cu" "$tree/test_llama.cu"
cd "$tree"
python=$(python3 -c 'import sys; print(sys.executable)')

# program PATH TEXT: a stand-in. It notes how it was called.
program() {
  mkdir -p "$(dirname "$1")"
  printf '#!/usr/bin/env bash\necho "%s $*" >>"%s/called"\n%s\n' "$(basename "$1")" "$scratch" "$2" >"$1"
  chmod +x "$1"
}
program "$stand_in/nvidia-smi" "[ -e $scratch/gone ] && exit 9
case \$* in
  *-i\ 3\ *name,compute_cap*) echo 'NVIDIA H100 80GB HBM3, 9.0, 81559, 580.1' ;;
  *-i\ 3\ *clocks*) echo '1980, 2619, 300.5, 50' ;;
  *) echo 'Some other GPU, 7.5, 16000, 580.1' ;;
esac"
program "$stand_in/make" "exit 0"
program scripts/doctor "echo cuda"
for kernel in dev/kernels/*.cu; do program "build/cuda/kernels/$(basename "$kernel" .cu)" "echo 'ok   all'; echo '1 passed, 0 failed'"; done
program build/cuda/test_llama "echo '1 passed, 0 failed'"
program build/cuda/test/comm 'case ${1:-} in stay-away) echo "not done within 20 s"; exit 1 ;; fail-one) echo "trouble of one rank"; exit 1 ;; esac'
program build/cuda/bench/host_copies "for way in 'to the host' 'from the host' 'both at once'; do echo \"\$way  50.0 GB/s each way\"; done"
program build/cuda/bench/train 'if [[ $* == *--predict* ]]; then
  printf "\npredicted: 60.0k tokens/s a GPU, MFU 50.0%% (x)\n"
  printf "products    288  352.69 ms    67.6%%     10.763  352.69 ms\nidle    0.00 ms   0.0%%   0.000\n"
else
  echo "20 steps: 350.67 ms each (274.70 to 473.83): 66.0k tokens/s a rank, 66.0k in all; loss 5.5"
  echo "MFU 55.0% (attention in full) of 989 TFLOP/s"
  printf "products    51  191.45 ms    57.1%%     9.480  191.45 ms\nidle    1.39 ms   0.4%%   0.680\n"
fi'
program build/cuda/train_llama 'while [ $# -gt 0 ]; do case $1 in --out) out=$2 ;; --trace) echo "{}" >"$2" ;; --cuda-graphs) graphs=$2 ;; esac; shift; done
mkdir -p "$out"
for step in 1 2 3 4 5 6; do echo "{\"step\":$step,\"loss\":5.$((9 - step))25}"; done >"$out/train.jsonl"; touch "$out/tuning.json"'
for peer in pytorch_ratio ladder; do program dev/bench/$peer "echo 'median: 0.950 times as fast as PyTorch'"; done
program dev/bench/attention "for shape in 'forward, head size 128, T = 8192' 'backward, head size 128, T = 8192' \
  'forward, head size 64, T = 4096' 'backward, head size 64, T = 4096'; do
  echo \"\$shape: 420 TFLOP/s; limit 400, goal 660, predicted 566: the limit\"
done"
echo "" >dev/bench/memory_policies
printf '#!/usr/bin/env bash\nif [ "$1" = -c ]; then echo 2.11.0; else exec %s "$@"; fi\n' "$python" >"$stand_in/python3"
chmod +x "$stand_in/python3"

# These misbehave as on a first GPU.
program build/cuda/kernels/hopper 'echo "try  multiply<64>, lines of 128 bytes"; sleep 60'
program build/cuda/kernels/number 'echo "try  conversions"; kill -SEGV $$; sleep 5'

export PATH=$stand_in:$PATH CUDA_VISIBLE_DEVICES=3,1
gpu_check() { scripts/gpu_check.sh "$@" >"$scratch/out" 2>&1; }
out=build/gpu_check/out
is() { [ "$("$python" -c "import json; print(json.load(open('$out/gpu_check.json'))['checks'].get('$1', {}).get('result'))")" = "$2" ]; }
says() { grep -qF -- "$1" "$scratch/out"; }
page_says() { grep -qF -- "$1" $out/gpu_check.txt; }
before() { # A B: A's line comes first
  [ "$(grep -n -m1 -F -- "  $1" "$scratch/out" | cut -d: -f1)" -lt "$(grep -n -m1 -F -- "  $2" "$scratch/out" | cut -d: -f1)" ]
}

# A call whose time is short: what does not fit is left for the next one.
program build/cuda/test_llama '[[ $* == *gqa4* ]] && { echo "FAIL logits: error 1"; exit 1; }; echo "1 passed, 0 failed"'
code=0
gpu_check --seconds 100 --limit 3 || code=$?
check "a failure is exit code 1" [ $code = 1 ]
check "the GPU is the one that CUDA_VISIBLE_DEVICES names first" page_says "NVIDIA H100 80GB HBM3"
check "a check that hangs is ended at its limit" is wrappers/hopper hung
check "the page tells how far it came" page_says "not done after 3 s; it last said: try  multiply<64>, lines of 128 bytes"
check "a check that crashes" is wrappers/number crashed
check "the page tells its signal" page_says "SIGSEGV; it last said: try  conversions"
check "a check that fails" is parity/gqa4 failed
check "the page tells why" page_says "exit code 1: FAIL logits: error 1"
check "no other dump fails" is parity/gqa7 ok
check "what needs the broken part is not tried" is attention/attention_hopper skipped
check "the page says what was broken" page_says "wrappers/hopper found this broken: Hopper's instructions: attention/attention_hopper"
check "nor is the kernel timed" is bench/hopper skipped
check "models go round it" grep -q "^train .*--attention mma" "$scratch/called"
check "so does parity, where the head size would take it" grep -q "test_llama .*head64 --dtype bf16 --attention mma" "$scratch/called"
check "the page says so" page_says "Models with heads of 64 and 128 ran with --attention mma."
check "what takes longer than what is left waits" is pytorch/1b_bf16 None
check "the page names it" grep -qE "^  .*pytorch/1b_bf16, pytorch/1b_fp8" $out/gpu_check.txt
check "a figure stands beside its prediction" grep -qE "1B bf16, tokens/s +66000 +60000 +110%" $out/gpu_check.txt
check "and a class of work" grep -qE "1B bf16, products, us a token +9.48 +10.763 +88%" $out/gpu_check.txt
last=""
for name in machine/needs machine/build wrappers/probe attention/attention parity/gqa4 train/quickstart 1b/bf16 1b/fp8 \
  pytorch/attention graphs/bf16 ranks/collectives kernels/adamw bench/adamw; do
  if [ -n "$last" ]; then check "$name comes after $last" before "$last" "$name"; fi
  last=$name
done
check "three files" [ "$(ls $out | sort | xargs)" = "gpu_check.json gpu_check.tar gpu_check.txt" ]
tar -tf $out/gpu_check.tar >"$scratch/tar"
check "the tar has the logs" grep -q "logs/wrappers.hopper.txt" "$scratch/tar"

# The next call goes on: nothing is repeated, what had no time is done.
: >"$scratch/called"
code=0
gpu_check || code=$?
check "the failures of before are no failure of this call's making, and still count" [ $code = 1 ]
check "what works is not tried again" [ "$(grep -c "^adamw check" "$scratch/called")" = 0 ]
check "nor is what hangs" [ "$(grep -c "^hopper check" "$scratch/called")" = 0 ]
check "what was left is done" is pytorch/1b_bf16 ok
check "a rate below its limit" page_says "BELOW its limit of 1"
check "  stands in the heading" page_says "Below their limit: 1B bf16, "
check "all is done" page_says ", 0 are left."

# Other sources: what failed is tried again.
echo "// mended" >>dev/kernels/hopper.cu
program build/cuda/kernels/hopper "echo 'ok   all'"
gpu_check || true
check "after a change what failed is tried again" is wrappers/hopper ok
check "and what waited for it" is attention/attention_hopper ok
check "not what worked" [ "$(grep -c "^adamw check" "$scratch/called")" = 0 ]
check "nothing goes round it any more" bash -c "! grep -q 'ran with --attention' $out/gpu_check.txt"

# Both kernels on tensor cores are broken, then only one.
program build/cuda/kernels/attention_mma "echo 'FAIL out'; exit 1"
program build/cuda/kernels/attention_hopper "echo 'FAIL out'; exit 1"
: >"$scratch/called"
gpu_check attention 1b/bf16 memory/policies || true
check "without both, plain attention" grep -q "^train .*--attention plain" "$scratch/called"
program build/cuda/kernels/attention_hopper "echo 'ok   all'"
: >"$scratch/called"
gpu_check attention 1b/bf16 || true
check "with Hopper's alone, no way round" bash -c "! grep -q '^train .*--attention' '$scratch/called'"
program build/cuda/kernels/attention_mma "echo 'ok   all'"

# A build that fails is tried again, and nothing is tried without it.
program "$stand_in/make" "echo 'make: *** no compiler'; exit 2"
gpu_check --fresh || true
check "a build that fails" is machine/build failed
check "  stops the rest" is wrappers/probe skipped
program "$stand_in/make" "sleep 60"
gpu_check --fresh --seconds 14 || true
check "a build that the call's end cut short" is machine/build unfinished
check "  leaves the rest to the next call" says "0 failed, 0 were skipped"
program "$stand_in/make" "exit 0"
gpu_check wrappers || true
check "  is tried in the next call" is machine/build ok
check "  and the rest with it" is wrappers/probe ok

# A figure that is not in the output is a failure, not silence.
program build/cuda/bench/host_copies "echo nothing"
gpu_check memory/host_copies || true
check "a check without its figure" is memory/host_copies failed
program build/cuda/bench/host_copies "for way in 'to the host' 'from the host' 'both at once'; do echo \"\$way  50.0 GB/s each way\"; done"

# Time that ends during a check leaves it unfinished, for the next call.
program build/cuda/kernels/probe "sleep 60"
gpu_check --seconds 12 wrappers/probe || true
check "a check that the call's end cut short" is wrappers/probe unfinished
program build/cuda/kernels/probe "echo 'ok   all'"
gpu_check || true
check "is tried again" is wrappers/probe ok

# A call that is killed leaves what it found, and a page.
program build/cuda/kernels/probe "sleep 60"
scripts/gpu_check.sh --fresh >"$scratch/out" 2>&1 &
killed=$!
for _ in {1..100}; do
  if says "wrappers/probe … "; then break; fi
  sleep 0.1
done
check "the name of a check is there before it is tried" says "wrappers/probe … "
kill -KILL $killed
check "after a kill the results are there" is machine/build ok
check "and the page" page_says "What works"

# Comparisons without PyTorch, two ranks, a GPU that is gone.
program build/cuda/kernels/probe "echo 'ok   all'"
printf '#!/usr/bin/env bash\nif [ "$1" = -c ]; then exit 1; else exec %s "$@"; fi\n' "$python" >"$stand_in/python3"
gpu_check pytorch || true
check "a comparison without PyTorch is skipped" is pytorch/1b_bf16 skipped
program build/cuda/test/comm '[ -n "${NCCL_WIN_ENABLE:-}" ] && exit 0; if [ "$RANK" = 0 ]; then echo "error: ncclCommWindowRegister"; exit 1; fi; sleep 60'
gpu_check --limit 4 ranks || true
check "one rank fails and the other waits" is ranks/collectives hung
check "without windows" is ranks/without_windows ok
check "the page says so, too" page_says "Ranks ran with NCCL_WIN_ENABLE=0."
program build/cuda/test/comm "exit 1"
gpu_check --limit 4 ranks || true
check "nor without windows" is ranks/without_windows failed
program build/cuda/test/comm '[ -n "${NCCL_WIN_ENABLE:-}" ] && exit 7; exit 0'
gpu_check --limit 4 ranks/collectives ranks/zero0 || true
check "a check is tried with windows, although they were broken" is ranks/collectives ok
check "  and its substitute no longer counts" is ranks/zero0 ok
program build/cuda/kernels/adamw "touch $scratch/gone; kill -ABRT \$\$"
gpu_check kernels || true
check "after the GPU is gone nothing more is tried" says "The GPU no longer answers"
check "the last one" is kernels/adamw crashed
rm "$scratch/gone"

check "--list names each check" bash -c "[ \$(scripts/gpu_check.sh --list | grep -c '^  [a-z0-9]*/') -gt 100 ]"
refused "a check that is none" "there is no check nonsense" scripts/gpu_check.sh nonsense
refused "no time" "--seconds -1: expected more than 0" scripts/gpu_check.sh --seconds -1
echo "$checks checks passed"
