# Wrong programs: each file of a folder is a sed script that makes one mistake in one source file of a copy of the tree;
# its head names the file, the target to build, the command that must fail, and what it must say. Sourced after lib.bash.
# shellcheck shell=bash

# each_fault FOLDER [K]: makes them one by one, or K of them, and sees each fail.
each_fault() {
  local copy=$scratch/tree fault chosen
  mkdir -p "$copy/build"
  cd "$root"
  cp -a Makefile scripts llmc dev train_llama.cu test_llama.cu "$copy"
  cp -a "$build" "$copy/build/cpu"
  mapfile -t chosen < <(printf '%s\n' "$1"/*.sed | some_of "${2:-}" | sort)
  for fault in "${chosen[@]}"; do
    (cd "$copy" && caught "$root/$fault") || exit 1
    checks=$((checks + 1))
  done
}

caught() { # FAULT, in the copy
  local file command message target code=0
  says() { sed -n "s/^# $1: *//p" "$fault"; }
  fault=$1 file=$(says File) command=$(says "Caught by") message=$(says Says) target=$(says Builds)
  cp -p "$file" "$scratch/original"
  sed -i -E -f "$fault" "$file"
  ! cmp -s "$file" "$scratch/original" || fail "$fault changes nothing in $file"
  env -u LLMC_BUILD make DEVICE=cpu "build/cpu/$target" >"$scratch/make.txt" 2>&1 || { tail -n 20 "$scratch/make.txt" && fail "$fault: does not compile"; }
  LLMC_BUILD=build/cpu timeout 200 bash -c "$command" >"$scratch/out.txt" 2>&1 || code=$?
  if [ "$code" = 0 ] || ! grep -qE -- "$message" "$scratch/out.txt"; then
    tail -n 20 "$scratch/out.txt"
    fail "$(basename "$fault"): $command ended with $code and did not say \"$message\""
  fi
  echo "ok   $(basename "$fault" .sed), caught by $command: $(awk -v m="$message" '$0 ~ m && !n++' "$scratch/out.txt")"
  cp "$scratch/original" "$file" # newer than the faulty object, so that the next build makes it again
}
