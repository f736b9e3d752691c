#!/usr/bin/env bash
# Covers: checks that can fail: wrong programs (clip/norm², a wrong q/k permutation, bf16 softmax, norm sums or weight
# gradients, another rank's batch, labels off by one, borders of documents that are not masked or predicted, files not
# forced to the disk) are each caught
# Timeout: 900
#
# Each file of dev/test/faults is a sed script that makes one mistake in one source file of a copy of the tree; its head
# names the file, the command that must fail, and what it must say.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"

says() { sed -n "s/^# $2: *//p" "$1"; }

copy=$scratch/tree
mkdir -p "$copy/build"
cd "$root"
cp -a Makefile scripts llmc dev train_llama.cu test_llama.cu "$copy"
cp -a "$build" "$copy/build/cpu"
for fault in dev/test/faults/*.sed; do
  file=$(says "$fault" File) command=$(says "$fault" "Caught by") message=$(says "$fault" Says) target=$(says "$fault" Builds)
  (
    cd "$copy"
    cp -p "$file" "$scratch/original"
    sed -i -E -f "$root/$fault" "$file"
    ! cmp -s "$file" "$scratch/original" || fail "$fault changes nothing in $file"
    env -u LLMC_BUILD make DEVICE=cpu "build/cpu/$target" >"$scratch/make.txt" 2>&1 || { tail -n 20 "$scratch/make.txt" && fail "$fault: does not compile"; }
    code=0
    LLMC_BUILD=build/cpu timeout 200 bash -c "$command" >"$scratch/out.txt" 2>&1 || code=$?
    if [ "$code" = 0 ] || ! grep -qE -- "$message" "$scratch/out.txt"; then
      tail -n 20 "$scratch/out.txt"
      fail "$(basename "$fault"): $command ended with $code and did not say \"$message\""
    fi
    echo "ok   $(basename "$fault" .sed), caught by $command: $(awk -v m="$message" '$0 ~ m && !n++' "$scratch/out.txt")"
    cp "$scratch/original" "$file" # newer than the faulty object, so that the next build makes it again
  )
  checks=$((checks + 1))
done
echo "$checks checks passed"
