#!/usr/bin/env bash
# Covers: the README's commands work as written
# Timeout: 600
# Alone: its ranks take all cores
#
# Runs the ```bash blocks of README.md, or of the pages that are named (make test-docs: those of dev/docs). A block of any
# other kind (```text, ```sh) needs a GPU, a cluster, a download or a browser, and is not run.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
pages=("${@:-README.md}")

# In a copy with what is built, so that `make` is short and runs/ is the copy's.
copy=$scratch/tree
mkdir -p "$copy/build"
cd "$root"
cp -a Makefile README.md scripts llmc dev train_llama.cu test_llama.cu "$copy"
cp -a "$build" "$copy/build/cpu"
[ -e build/.configured ] && cp -a build/.configured "$copy/build/"
cd "$copy"
# The README says how to build; its pages take that as done.
[ "$#" = 0 ] || env -u LLMC_BUILD DEVICE=cpu make >"$scratch/out.txt" 2>&1 || { cat "$scratch/out.txt" && fail "make"; }

# commands PAGE: a line for each, without its comment; a line that ends with \ goes on.
commands() {
  awk '/^```bash/ { on = 1; next } /^```/ { on = 0 } on { if (sub(/\\$/, "")) printf "%s", $0; else print }' "$1" |
    sed 's/ *#.*//' | grep -v '^ *$' || true
}

for page in "${pages[@]}"; do
  commands "$page" >"$scratch/commands"
  check "$page has commands" [ -s "$scratch/commands" ]
  while read -r command; do
    # This test's own caller, and what installs first; CI runs both.
    case $command in
      "make quickstart" | "make test"*) echo "     not here: $command" && continue ;;
    esac
    code=0
    env -u LLMC_BUILD DEVICE=cpu bash -c "$command" >"$scratch/out.txt" 2>&1 </dev/null || code=$?
    # 2: a dry run of what this machine has no room for.
    if [ "$code" != 0 ] && ! [[ $code == 2 && $command == *--dry-run* ]]; then
      tail -n 20 "$scratch/out.txt"
      fail "$page: $command"
    fi
    check "$command" true
  done <"$scratch/commands"
done
echo "$checks checks passed"
