#!/usr/bin/env bash
# Covers: promise 4: a training that is killed halfway and resumed exports the weights of one that is left alone, to the last
# bit: one SHA-256, with one thread and with two; another seed and a step too many have another
# Timeout: 200
# Turn: 2
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
# shellcheck source=dev/test/stopping.bash
source "$root/dev/test/stopping.bash"
hash_of() { # NAME COMMAND…: the only hash that it prints; all that it prints is in NAME.txt
  "${@:2}" >"$scratch/$1.txt" || return 1
  grep -oE '^[0-9a-f]{64}' "$scratch/$1.txt" | sort -u
}
one_hash=("$root/dev/bench/one_hash" --steps 40 --global-batch 4 --micro-batch 4)
export LLMC_THREADS=1
stopping_trainer tiny
one=$(hash_of one "${one_hash[@]}" --program "$stopping") || { cat "$scratch/one.txt" && fail "one thread: it failed"; }
check "killed and resumed: $one" says one "one hash"
for fact in "compiler " "device             CPU (1 thread)" "libm " "LLMC_THREADS       1"; do
  check "it says what the bits depend on: $fact" says one "  $fact"
done
export LLMC_THREADS=2
check "two threads, killed and resumed: the same hash" [ "$(hash_of two "${one_hash[@]}" --program "$stopping")" = "$one" ]
check "another seed: another hash" [ "$(hash_of seed "${one_hash[@]}" --program "$train" --once --seed 2)" != "$one" ]

# A program that goes a step too far when it resumes.
cat >"$scratch/longer" <<END
#!/usr/bin/env bash
arguments=("\$@")
if [[ " \$* " == *" --resume auto "* ]]; then arguments=("\${arguments[@]/#40/41}"); fi
exec "$stopping" "\${arguments[@]}"
END
chmod +x "$scratch/longer"
check "a step too many: two hashes" exits 1 "${one_hash[@]}" --program "$scratch/longer" --schedule constant
check "  and it says so" said "TWO HASHES"
refused "the script's own option" "--out: this script sets it" "${one_hash[@]}" --out "$scratch/x"
refused "a number of steps that is none" "--steps x: expected a number" "${one_hash[@]}" --program "$train" --steps x
refused "an option without its value" "--steps : expected a number" "${one_hash[@]}" --program "$train" --steps
refused "a training without two halves" "--steps 1: expected a number, 2 or more" "${one_hash[@]}" --program "$train" --steps=1
refused "a training that fails" "unknown option" "${one_hash[@]}" --program "$train" --stepz 3
echo "$checks checks passed"
