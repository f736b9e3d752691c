#!/usr/bin/env bash
# Covers: the commands of the README and of the pages in dev/docs work as written, and their links lead to something
# Timeout: 600
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"

# In a copy with what is built, so that `make` is short and runs/ is the copy's. Left out: the commands that are this
# test's own caller or take long (make test, make quickstart, run by CI as such), that replace the build under test,
# that install Python packages (make test-watch looks at those), or that need several machines (launch looks at those).
copy=$scratch/tree
mkdir -p "$copy/build"
cd "$root"
cp -a Makefile README.md scripts llmc dev train_llama.cu test_llama.cu "$copy"
cp -a "$build" "$copy/build/cpu"
[ -e build/.configured ] && cp -a build/.configured "$copy/build/"
cd "$copy"
pages=(README.md dev/docs/*.md)
commands() { awk '/^```bash/ { on = 1; next } /^```/ { on = 0 } on' "$@" | sed 's/ *#.*//' | grep -v '^$'; }
for page in "${pages[@]}"; do
  commands "$page" >/dev/null || fail "$page has no command"
  while read -r link; do
    [ -e "$(dirname "$page")/${link%%#*}" ] || fail "$page: nothing at $link"
  done < <(grep -o '](\([^)]*\))' "$page" | sed 's/^](//; s/)$//' | grep -v -e '^https\?://' -e '^#')
done
commands "${pages[@]}" >"$scratch/commands"
check "there are commands, and what links name" [ "$(wc -l <"$scratch/commands")" -ge 10 ]
while read -r command; do
  case $command in
    "make quickstart" | "make test"* | scripts/report* | scripts/tensorboard* | scripts/wandb_sync* | \
      "scripts/run --hosts node"* | sbatch* | *dev/bench/fp8_losses*)
      echo "     not here: $command" && continue
      ;;
  esac
  code=0
  env -u LLMC_BUILD DEVICE=cpu bash -c "$command" >"$scratch/out.txt" 2>&1 </dev/null || code=$?
  # 2: a dry run of what this machine has no room for.
  if [ "$code" != 0 ] && ! [[ $code == 2 && $command == *--dry-run* ]]; then
    tail -n 20 "$scratch/out.txt"
    fail "$command"
  fi
  check "$command" true
done <"$scratch/commands"
echo "$checks checks passed"
