#!/usr/bin/env bash
# Covers: --gpu-every: a rank that computes slower than the others is named by its host and process, until it does not; log
# and losses; NVML's sensors from a library that stands in for the driver's
# Timeout: 300
# Alone: one rank of two is to be the slow one
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export LLMC_THREADS=1

echo "-- the sensors of a stand-in for NVML"
cat >"$scratch/nvml.cpp" <<'END'
#include <cstring>
extern "C" {
int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  static int handle;
  *gpu = &handle;
  return strcmp(uuid, "GPU-8a6e") == 0 ? 0 : (*gpu = nullptr, 6);
}
int nvmlDeviceGetClockInfo(void*, int type, unsigned* mhz) { return *mhz = 1200, type == 1 ? 0 : 2; }
int nvmlDeviceGetMaxClockInfo(void*, int type, unsigned* mhz) { return *mhz = 1980, type == 1 ? 0 : 2; }
int nvmlDeviceGetTemperature(void*, int sensor, unsigned* celsius) { return *celsius = 84, sensor == 0 ? 0 : 2; }
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) { return *milliwatts = 420999, 0; }
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) { return *milliwatts = 700000, 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void*, unsigned long long* bits) { return *bits = 5, 0; }
int nvmlDeviceGetTotalEccErrors(void*, int type, int counter, unsigned long long* errors) {
  return *errors = type == 0 ? 3 : 1, counter == 0 ? 0 : 2;
}
}
END
"${CXX:-c++}" -shared -fPIC "$scratch/nvml.cpp" -o "$scratch/libnvidia-ml.so.1"
check "what NVML says is read" env LD_LIBRARY_PATH="$scratch:${LD_LIBRARY_PATH:-}" LLMC_TEST_NVML=1 "$build/test/test_rank_times" -tc="NVML*"

echo "-- a rank that is stopped for three quarters of the time"
options=(--model tiny --layers 1 --seq-len 64 --global-batch 64 --micro-batch 8 --schedule constant --warmup-steps 0 --val-every 0
  --sample-every 0)
begin slowed '^step  *3/' mpirun --oversubscribe --bind-to none -n 2 "$train" "${options[@]}" --gpu-every 1 --steps 1000000 \
  --out "$scratch/slowed"
for slow in $(pgrep -f "^$train .*$scratch/slowed"); do
  if tr '\0' '\n' <"/proc/$slow/environ" | grep -qx OMPI_COMM_WORLD_RANK=1; then break; fi
done
python3 - "$slow" "$scratch/slowed.txt" <<'END'
import os, signal, sys, time
rank, said = int(sys.argv[1]), sys.argv[2]
def until(word, stopped, running):
    while word not in open(said).read():  # the test's time limit ends it
        if stopped:
            os.kill(rank, signal.SIGSTOP)
            time.sleep(stopped)
            os.kill(rank, signal.SIGCONT)
        time.sleep(running)
until("is slow: ", 0.015, 0.005)
until("is slow no longer", 0, 0.1)
END
pkill -INT -f "^mpirun .*$scratch/slowed"
check "the run ends when it is asked to" ends 30
whose="rank 1 (host $(hostname), process $slow)"
check "the rank is named" says slowed "$whose is slow: it computes "
check "  and nobody else" says_not slowed "rank 0 (host"
check "  and that it is slow no longer" says slowed "$whose is slow no longer"
looks() { python3 - "$scratch/slowed/train.jsonl" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[1])]
looks = [line for line in lines if "computing_ms" in line]
assert [line["step"] for line in looks] == [line["step"] for line in lines if "loss" in line]
for look in looks:
    times = look["computing_ms"]
    least, most = sorted(times)
    assert least > 0 and [look[f"computing_ms_{of}"] for of in ("min", "median", "max")] == [least, least, most]
    assert look["slowest"].startswith(f"rank {times.index(most)} (host ")
print(len(looks), "looks")
END
}
check "each look stands in the log, with the times of all ranks" looks

echo "-- what it changes"
run even 2 --steps 6 --gpu-every 0
same_losses() { alike_lines even slowed <(losses "$scratch/even/train.jsonl") <(losses "$scratch/slowed/train.jsonl" | head -n 6); }
check "the losses are those without looks" same_losses
check "  of which the log has none" not grep -q computing_ms "$scratch/even/train.jsonl"
# A look at step 4, while the snapshot of step 3 waits to be written.
run saved 2 --steps 6 --gpu-every 2 --checkpoint-every 3
step_of() { python3 -c 'import json, sys; print(json.load(open(sys.argv[1] + "/state.json"))["step"])' "$(checkpoint saved "$1")"; }
check "a checkpoint that is saved meanwhile has its own step" [ "$(step_of 3) $(step_of 6)" = "3 6" ]
resume gone-on 2 "$(checkpoint saved 3)"
check "  and the run goes on from it to the same bits" same_weights saved gone-on
# The look at step 6 belongs to the checkpoint of step 6.
cp -r "$scratch/saved" "$scratch/longer"
resume longer 2 auto --steps 8
check "a look at the step of the checkpoint stays in the log, once" [ "$(grep -c '"step":6,"look":true' "$scratch/longer/train.jsonl")" = 1 ]
check "  and nothing is rolled back" not ls "$scratch/longer/train.rolled-back.jsonl"
echo "$checks checks passed"
