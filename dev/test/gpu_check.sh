#!/usr/bin/env bash
# Covers: scripts/gpu_check.sh: order, limits, what hangs, crashes or fails and what follows from it, resumption, its page;
# the rehearsals without a GPU, on the software GPU and in the CPU's build
# Timeout: 240
# Turn: 3
# shellcheck disable=SC2016  # the little programs expand their own variables
#
# Stand-ins take the place of the programs, the compiler and the GPU. Some misbehave as a first GPU might make them.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"

tree=$scratch/tree stand_in=$scratch/bin
mkdir -p "$tree/dev/bench" "$tree/dev/reference" "$tree/llmc" "$tree/scripts" "$stand_in"
cp -r "$root/scripts/gpu_check.sh" "$root/scripts/gpu_check" "$tree/scripts"
cp -r "$root/dev/reference/dumps" "$tree/dev/reference"
cp "$root"/dev/bench/{llama3.2-1b.json,peers,peers_rows.py,show_runs.py,training.py} "$tree/dev/bench"
cp -r "$root/scripts/llmc_runs" "$tree/scripts"
mkdir "$tree/dev/kernels"
for kernel in "$root"/dev/kernels/*.cu; do touch "$tree/dev/kernels/$(basename "$kernel")"; done
touch "$tree/Makefile" "$tree/train_llama.cu" "$tree/test_llama.cu"
cd "$tree"
python=$(python3 -c 'import sys; print(sys.executable)')

# program PATH TEXT: a stand-in. It notes how it was called. A program that starts at this moment cannot be written to, so a
# new file takes its place.
program() {
  mkdir -p "$(dirname "$1")"
  printf '#!/usr/bin/env bash\necho "%s $*" >>"%s/called"\n%s\n' "$(basename "$1")" "$scratch" "$2" >"$1.new"
  chmod +x "$1.new"
  mv "$1.new" "$1"
}
program "$stand_in/nvidia-smi" "[ -e $scratch/gone ] && exit 9
case \$* in
  *-i\ 3\ *name,compute_cap*) echo 'NVIDIA H100 80GB HBM3, 9.0, 81559, 580.1' ;;
  *-i\ 3\ *clocks*) echo '1980, 2619, 300.5, 50' ;;
  *) echo 'Some other GPU, 7.5, 16000, 580.1' ;;
esac"
program "$stand_in/make" "exit 0"
program scripts/doctor 'echo "$DEVICE"'
for kernel in dev/kernels/*.cu; do program "build/cuda/kernels/$(basename "$kernel" .cu)" "echo 'ok   all'; echo '1 passed, 0 failed'"; done
program build/cuda/test_llama "echo '1 passed, 0 failed'"
program build/cuda/test/comm 'case ${1:-} in stay-away) echo "waited 20 s"; exit 1 ;; fail-one) echo "trouble of one rank"; exit 1 ;; esac'
copies="for way in 'to the host' 'from the host' 'both at once'; do echo \"\$way  50.0 GB/s each way\"; done"
program build/cuda/bench/host_copies "$copies"
program build/cuda/bench/train 'if [[ $* == *--predict* ]]; then
  printf "\npredicted: 60.0k tokens/s a GPU, MFU 45.0%% (x)\n"
  printf "products    288  352.69 ms    67.6%%     10.763  352.69 ms\nidle    0.00 ms   0.0%%   0.000\n"
else
  echo "a model, 4 layers, 1.00B parameters: 1 rank x 1 micro-batch"
  echo "20 steps: 350.67 ms each (274.70 to 473.83): 66.0k tokens/s a rank, 66.0k in all; loss 5.5"
  echo "GPU, while it trains: 1500 MHz, 2619 MHz, 690.1 W, 61"
  echo "memory: after the first step 61.5 GiB of the device are taken: 60.0 GiB are planned"
  echo "MFU 50.0% (55.0% with attention in full: 6 N + 12 L C T) of 989 TFLOP/s"
  printf "products    51  191.45 ms    57.1%%     9.480  191.45 ms\nidle    1.39 ms   0.4%%   0.680\n"
fi'
program build/cuda/train_llama 'while [ $# -gt 0 ]; do case $1 in --out) out=$2 ;; --trace) echo "{}" >"$2" ;; --cuda-graphs) graphs=$2 ;; esac; shift; done
mkdir -p "$out"
for step in 1 2 3 4 5 6; do echo "{\"step\":$step,\"loss\":5.$((9 - step))2${other:-5}}"; done >"$out/train.jsonl"; touch "$out/tuning.json"'
for peer in pytorch_ratio ladder; do program dev/bench/$peer "echo 'median, 1b: train_llama 95 tokens/s, PyTorch (--compile) 100 tokens/s: 0.950 times as fast as PyTorch'; echo 'PyTorch was: 2.11.0: compiled'"; done
program dev/bench/attention "for shape in 'forward, head size 128, T = 8192' 'backward, head size 128, T = 8192' \
  'forward, head size 64, T = 4096' 'backward, head size 64, T = 4096'; do
  echo \"\$shape: 420 TFLOP/s; limit 400, goal 660, predicted 566: the limit\"
done"
echo "" >dev/bench/memory_policies
# As dev/bench/show run NAME [--small] … --folder F …; the weights after a kill have the hash in $scratch/after_kill.
program dev/bench/show 'out="$*" out=${out#*--folder } out=${out%% *}; if [[ $* == *--small* ]]; then out+=/small; fi; mkdir -p "$out/results/$2"
hash=aa; if [ "$2" = bf16-killed ]; then hash=$(cat '"$scratch"'/after_kill); fi
echo "{\"tokens_per_s\": 250000.5, \"sha256\": \"$hash\"}" >"$out/results/$2/result.json"
echo "{\"step\":2000,\"val_loss\":3.25}" >"$out/results/$2/train.jsonl"'
echo aa >"$scratch/after_kill"
torch() { # COMMAND: what Python does when it is asked for PyTorch's version
  printf '#!/usr/bin/env bash\nif [ "$1" = -c ]; then %s; else exec %s "$@"; fi\n' "$1" "$python" >"$stand_in/python3"
  chmod +x "$stand_in/python3"
}
torch 'echo 2.11.0'

# These misbehave as on a first GPU.
program build/cuda/kernels/hopper 'echo "try  wgmma<64>, lines of 128 bytes"; sleep 60'
program build/cuda/kernels/number 'echo "try  conversions"; kill -SEGV $$; sleep 5'

export PATH=$stand_in:$PATH CUDA_VISIBLE_DEVICES=3,1
out=build/gpu_check/out
# calls ARGUMENTS…: a call of the script; how it went is $code.
calls() {
  : >"$scratch/called"
  code=0
  scripts/gpu_check.sh "$@" >"$scratch/out.txt" 2>&1 || code=$?
}
result() { "$python" -c "import json; print(json.load(open('$out/gpu_check.json'))['checks'].get('$1', {}).get('result'))"; }
is() { check "  $1 is $2" [ "$(result "$1")" = "$2" ]; } # CHECK RESULT
page() { check "  the page: $1" grep -qE -- "$1" $out/gpu_check.txt; }
called() { check "  called: $1" grep -q -- "$1" "$scratch/called"; }
not_called() { check "  not called: $1" not grep -q -- "$1" "$scratch/called"; }
place() { grep -n -m1 -F -- "  $1" "$scratch/out.txt" | cut -d: -f1; }

echo "-- a call whose time is short: what does not fit is left for the next one"
program build/cuda/test_llama '[[ $* == *gqa4* ]] && { echo "FAIL logits: error 1"; exit 1; }; echo "1 passed, 0 failed"'
calls --seconds 100 --limit 4
check "a failure is exit code 1" [ $code = 1 ]
page "NVIDIA H100 80GB HBM3" # that CUDA_VISIBLE_DEVICES names first
is wrappers/hopper hung
page "not done after 4 s; it last said: try  wgmma<64>, lines of 128 bytes"
is wrappers/number crashed
page "SIGSEGV; it last said: try  conversions"
is parity/gqa4 failed
page "exit code 1: FAIL logits: error 1"
is parity/gqa7 ok
echo "   what needs the broken part is not tried, and models go round it"
is attention/attention_hopper skipped
page "wrappers/hopper found this broken: Hopper's instructions: attention/attention_hopper"
is bench/hopper skipped
called "^train .*--attention mma"
called "test_llama .*head64 --dtype bf16 --attention mma"
page "Models with heads of 64 and 128 ran with --attention mma\."
is peers/llmq-0.5b-bf16 skipped # a rate without Hopper's attention is not what a peer's should be compared with
is pytorch/8b_bf16 None
page "^  .*pytorch/8b_bf16, pytorch/8b_fp8"
page "1B bf16, tokens/s +66000 +60000 +110%"
page "1B bf16, products, us a token +9.48 +10.763 +88%"
last=""
for name in machine/needs machine/build wrappers/probe attention/attention parity/gqa4 train/quickstart 1b/bf16 1b/fp8 \
  pytorch/attention graphs/bf16 ranks/collectives kernels/adamw bench/adamw; do
  if [ -n "$last" ]; then check "  $name comes after $last" [ "$(place "$last")" -lt "$(place "$name")" ]; fi
  last=$name
done
check "three files" [ "$(cd $out && echo *)" = "gpu_check.json gpu_check.tar gpu_check.txt" ]
tar -tf $out/gpu_check.tar >"$scratch/tar"
check "  the tar has the logs" grep -q "logs/wrappers.hopper.txt" "$scratch/tar"

echo "-- the next call goes on: nothing is repeated, what had no time is done"
calls
check "the failures of before are no failure of this call's making, and still count" [ $code = 1 ]
not_called "^adamw check"
not_called "^hopper check"
is pytorch/8b_bf16 ok
page "BELOW its limit of 1"
page "Below their limit: 8B in 6 layers, bf16"
page ", 0 are left\."

echo "-- other sources: what failed is tried again, not what worked"
echo "// mended" >>dev/kernels/hopper.cu
program build/cuda/kernels/hopper "echo 'ok   all'"
calls
is wrappers/hopper ok
is attention/attention_hopper ok
is peers/pytorch-1b-bf16 ok
is show/bf16 skipped
page "build/show/data is not there: dev/bench/show prepare makes it, also on another machine: show/bf16, show/fp8-tensorwise"
mkdir -p build/show/data && touch build/show/data/order.safetensors
echo bb >"$scratch/after_kill"
calls show
is show/fp8-gather ok
page "  bf16, real text, tokens/s +2\.5e\+05"
is show/bf16-killed failed
page "the weights have the hash bb after a kill, and aa of the run that was left alone"
echo aa >"$scratch/after_kill"
calls show/bf16-killed
is show/bf16-killed ok
echo '{"tokens_per_s": 1, "sha256": "aa", "commit": "another"}' >build/show/results/bf16/result.json
calls show/bf16-killed
is show/bf16-killed skipped
page "the run that is left alone .show/bf16. has no result of this GPU, driver and commit to compare with: show/bf16-killed"
check "  the tar has the results, a folder each" eval 'tar -tf $out/gpu_check.tar | grep "^kept/show/fp8-gather/result.json" >/dev/null'
tar -xf $out/gpu_check.tar -C "$scratch" kept/peers.tsv
check "  dev/bench/peers --take reads the rates in the tar" dev/bench/peers --take "$scratch/kept/peers.tsv"
check "    two lines of heads, and one for each row" [ "$(wc -l <dev/bench/peers.tsv)" = 15 ]
check "    524288 tokens in 350.67 ms" grep -qP "^llmq/0.5b-bf16\tNVIDIA H100 80GB HBM3\t1495103.7\t50.0\t55.0\t4\t61.5 GiB\t1500 MHz" dev/bench/peers.tsv
check "    PyTorch's rate is there, too" grep -qP "^pytorch/1b-fp8\t[^\t]*\t95.0\t.*\t100.0\t" dev/bench/peers.tsv
not_called "^adamw check"
check "  nothing goes round it any more" not grep -q 'ran with --attention' $out/gpu_check.txt

echo "-- both kernels on tensor cores are broken, then only one"
program build/cuda/kernels/attention_mma "echo 'FAIL out'; exit 1"
program build/cuda/kernels/attention_hopper "echo 'FAIL out'; exit 1"
calls attention 1b/bf16 memory/policies
called "^train .*--attention plain"
program build/cuda/kernels/attention_hopper "echo 'ok   all'"
calls attention 1b/bf16
not_called '^train .*--attention'
program build/cuda/kernels/attention_mma "echo 'ok   all'"

echo "-- a build that fails is tried again, and nothing is tried without it"
program "$stand_in/make" "echo 'make: *** no compiler'; exit 2"
calls --fresh
is machine/build failed
is wrappers/probe skipped
program "$stand_in/make" "sleep 60"
calls --fresh --seconds 14
is machine/build unfinished
check "  the rest is left to the next call" said "0 failed, 0 were skipped"
program "$stand_in/make" "exit 0"
calls wrappers
is machine/build ok
is wrappers/probe ok

echo "-- a figure that is not in the output is a failure, not silence"
program build/cuda/bench/host_copies "echo nothing"
calls memory/host_copies
is memory/host_copies failed
program build/cuda/bench/host_copies "$copies"

echo "-- time that ends during a check leaves it unfinished, for the next call"
program build/cuda/kernels/probe "sleep 60"
calls --seconds 12 wrappers/probe
is wrappers/probe unfinished
program build/cuda/kernels/probe "echo 'ok   all'"
calls wrappers/probe
is wrappers/probe ok

echo "-- a call that is killed leaves what it found, and a page"
program build/cuda/kernels/probe "sleep 60"
begin killed "wrappers/probe … " scripts/gpu_check.sh --fresh # the name of a check is there before it is tried
kill -KILL "$child"
is machine/build ok
page "What works"
program build/cuda/kernels/probe "echo 'ok   all'"

echo "-- comparisons without PyTorch, two ranks, a GPU that is gone"
torch 'exit 1'
calls pytorch peers
for name in pytorch/8b_bf16 peers/pytorch-1b-bf16; do is $name skipped; done
program build/cuda/test/comm '[ -n "${NCCL_WIN_ENABLE:-}" ] && exit 0; if [ "$RANK" = 0 ]; then echo "error: ncclCommWindowRegister"; exit 1; fi; sleep 60'
calls --limit 4 ranks
is ranks/collectives hung
is ranks/without_windows ok
page "Ranks ran with NCCL_WIN_ENABLE=0\."
program build/cuda/test/comm "exit 1"
calls --limit 4 ranks
is ranks/without_windows failed
program build/cuda/test/comm '[ -n "${NCCL_WIN_ENABLE:-}" ] && exit 7; exit 0'
calls --limit 4 ranks/collectives ranks/zero0
is ranks/collectives ok
is ranks/zero0 ok # without its substitute, which no longer counts
program build/cuda/kernels/adamw "touch $scratch/gone; kill -ABRT \$\$"
calls kernels
check "after the GPU is gone nothing more is tried" said "The GPU no longer answers"
is kernels/adamw crashed
rm "$scratch/gone"

echo "-- without a GPU, but with nvcc: a rehearsal on the software GPU"
cp -r build/cuda build/softgpu
for kernel in probe number hopper adamw; do program build/softgpu/kernels/$kernel "echo 'ok   all'"; done
program build/softgpu/kernels/rope '[ "$LLMC_SOFTGPU $LLMC_SOFTGPU_COUNT $LLMC_SIZES" = "h100 1 few" ] && echo "ok   all"'
program build/softgpu/kernels/swiglu 'kill -ABRT $$'
program build/softgpu/kernels/attention_hopper "echo 'FAIL out'; exit 1"
program build/softgpu/test/comm 'case ${1:-} in stay-away) echo "waited 20 s"; exit 1 ;; fail-one) echo "trouble of one rank"; exit 1 ;; esac'
program build/softgpu/bench/host_copies "$copies"
sed -i "3i echo 'on the software GPU' >>$scratch/called; [[ \$* == *--tensor-parallel-degree* ]] && other=7" build/softgpu/train_llama
torch 'echo 2.11.0'
program "$scratch/toolkit/bin/nvcc" "exit 1"
CUDA_VISIBLE_DEVICES='' LLMC_SOFTGPU=a100 CUDA_HOME=$scratch/toolkit calls
page "^train_llama on the software GPU, an H100 \(a rehearsal\): what it says of speed means nothing"
called "^make DEVICE=cuda ARCH=90a SOFTGPU=ptx BUILD=build/softgpu .*build/softgpu/test/comm"
called "^on the software GPU"
for name in kernels/rope bench/rope graphs/heads64 1b/blockwise ranks/absent ranks/zero3 memory/policies ladder/1b; do is $name ok; done
called "^train --model .*/narrow.json --seq-len 64 .*--attention mma" # as on a Hopper whose own attention is broken
is ranks/tensor failed # two ranks with other losses than one
page "in fp32 losses differ from one rank's by 2\.0e-03, more than 0\.0001"
is ranks/graphs_tensor ok
page "1B bf16, tokens/s +66000 +60000 +110%"
check "  no limit counts" not grep -qE "the limit is|BELOW" $out/gpu_check.txt
for name in peers/pytorch-1b-bf16 pytorch/attention pytorch/8b_fp8; do is $name skipped; done
is peers/llmq-7b-fp8 skipped
page "it measures a rate, and waits for a GPU: pytorch/attention, pytorch/8b_bf16"
is kernels/swiglu crashed
is ladder/1b ok # behind it: no GPU is gone

echo "-- without nvcc: in the CPU's build"
cp -r build/softgpu build/cpu
CUDA_VISIBLE_DEVICES='' CUDA_HOME=$scratch/none calls
page "^train_llama on a CPU \(a rehearsal\)"
called "^make DEVICE=cpu .*build/cpu/test/comm"
not_called "^make DEVICE=cuda"
is graphs/heads64 ok
is ranks/zero3 skipped
page "it waits for a GPU, or for nvcc and the software GPU: ranks/collectives, "

calls --list
check "--list names each check" [ "$(grep -c '^  [a-z0-9]*/' "$scratch/out.txt")" -gt 100 ]
refused "a check that is none" "there is no check nonsense" scripts/gpu_check.sh nonsense
refused "no time" "--seconds -1: expected more than 0" scripts/gpu_check.sh --seconds -1
echo "$checks checks passed"
