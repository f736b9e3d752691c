#!/usr/bin/env bash
# Covers: a program that reads along knows whether a run is under way, however it ended, and takes no lock that a run could meet
# Timeout: 100
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
in_own_tree
export PYTHONPATH=$root/scripts
live() { # FOLDER: prints True or False
  python3 -c 'import sys; from llmc_runs.run import Run; print(Run(sys.argv[1]).is_live())' "$1"
}
is() { [ "$(live "$scratch/$1")" = "$2" ]; }
short=(--layers 1 --seq-len 16 --global-batch 4 --val-every 0 --sample-every 0 --export off)

begin killed '^step' "$train" "${short[@]}" --steps 1000000 --out "$scratch/killed"
check "a run that trains is under way" is killed True
kill -KILL "$child"
wait "$child" || true
child=""
check "one that was killed is not" is killed False
hold_log "$scratch/killed"
check "one that holds the lock of which readers ask is" is killed True
release_log
check "  until it ends" is killed False

# A reader asks all the time, and the log is locked as a run locks it.
run first 1 "${short[@]}" --steps 1 --checkpoint-every 1
tries() {
  python3 - "$scratch/first" <<'END'
import fcntl, os, struct, subprocess, sys
from llmc_runs.run import Run
run = Run(sys.argv[1])
reader = os.fork()
while not reader:
    run.is_live()
refused = 0
for _ in range(20000):
    with open(run.log, "ab") as log:
        try:
            fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.fcntl(log, 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))  # F_OFD_SETLK
        except OSError:
            refused += 1
os.kill(reader, 9)
os.waitpid(reader, 0)
sys.exit(f"{refused} of 20000 tries were refused" if refused else 0)
END
}
check "no reader keeps a run from its log" tries
exec {file}>>"$scratch/first/train.jsonl"
flock "$file"
refused "a run that is under way does" "its run has not ended" \
  "$train" --resume auto --steps 2 --out "$scratch/first" --lock-timeout 0
echo "$checks checks passed"
