# A trainer for tests of kills; sourced after lib.bash.
# shellcheck shell=bash disable=SC2154  # lib.bash sets them

# stopping_trainer MODEL: $stopping is a program that trains as $train does, in a folder named cpu. If it saves checkpoints and
# does not resume, it stops (SIGSTOP) while it saves its second one, and never goes on: so the first one is whole, the run is not
# at its end, and whoever is to kill it may come late. The preloaded library counts calls of the disk; a checkpoint of the
# MODEL has the same number of them each time, or nearly so.
stopping_trainer() {
  local call
  mkdir -p "$scratch/cpu"
  stopping=$scratch/cpu/train_llama
  ln -s "$build/bench" "$build/flags" "$scratch/cpu"
  ${CC:-cc} -shared -fPIC -O1 -o "$scratch/disk.so" "$root/dev/test/disk_preload.c"
  : >"$scratch/calls"
  (cd "$root" && LD_PRELOAD=$scratch/disk.so DISK_DOES=count DISK_LOG=$scratch/calls "$train" --model "$1" --steps 2 --seq-len 32 \
    --global-batch 1 --micro-batch 1 --val-every 0 --sample-every 0 --export off --checkpoint-every 1 --checkpoint-async off \
    --out "$scratch/counted" >"$scratch/counted.txt") || { cat "$scratch/counted.txt" && fail "a run that counts"; }
  call=$(awk '/mkdir .*step-00000002/ { print $2 + 5 }' "$scratch/calls")
  [ -n "$call" ] || fail "no second checkpoint among the calls of the disk"
  cat >"$stopping" <<END
#!/usr/bin/env bash
if [[ " \$* " == *" --checkpoint-every "* && " \$* " != *" --resume "* ]]; then
  export LD_PRELOAD=$scratch/disk.so DISK_DOES=stop DISK_CALL=$call DISK_RANK=0
fi
exec "$train" "\$@"
END
  chmod +x "$stopping"
}
