#!/usr/bin/env bash
# Covers: the README's commands work as written; make test trains a tenth of their steps
# Timeout: 400
#
# Runs the ```bash blocks of README.md, or of the pages that are named, with all their steps (make test-docs). A block of
# any other kind (```text, ```sh) needs a GPU, a cluster, a download or a browser, and is not run.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
pages=("${@:-README.md}")

# In a copy with what is built, so that `make` is short and runs/ is the copy's.
mkdir -p "$scratch/tree/build/cpu"
cd "$root"
cp -a LICENSE Makefile README.md scripts llmc dev train_llama.cu test_llama.cu "$scratch/tree"
(cd "$build" && cp -a --parents config.mk summary.txt libllmc.a files flags commit minja programs train_llama test_llama standard* obj "$scratch/tree/build/cpu")
for made in build/.configured build/minja; do
  if [ -e $made ]; then cp -a $made "$scratch/tree/build"; fi
done
cd "$scratch/tree"
unset LLMC_BUILD
export DEVICE=cpu
check "make" exits 0 make

# commands PAGE: a line for each, without its comment; a line that ends with \ goes on.
commands() {
  awk '/^```bash/ { on = 1; next } /^```/ { on = 0 } on { if (sub(/\\$/, "")) printf "%s", $0; else print }' "$1" |
    sed 's/ *#.*//' | grep -v '^ *$' || true
}
# a_tenth: of the steps that a command trains, and of those between checkpoints, so that what follows it finds the same.
a_tenth() {
  awk '{ for (i = 2; i <= NF; i++) if ($(i - 1) == "--steps" || $(i - 1) == "--checkpoint-every") $i = int(($i + 9) / 10) } 1'
}

# runs COMMAND: it ends with one of the codes.
runs() {
  local code=0
  bash -c "$1" >"$scratch/out.txt" 2>&1 </dev/null || code=$?
  [[ " $codes " == *" $code "* ]] || { tail -n 20 "$scratch/out.txt" && return 1; }
}

for page in "${pages[@]}"; do
  commands "$page" | { if [ $# = 0 ]; then a_tenth; else cat; fi; } >"$scratch/commands"
  check "$page has commands" [ -s "$scratch/commands" ]
  rm -rf runs # a page's reader comes from a clone, and may name runs as another page does
  while read -r command; do
    # This test's own caller, and what installs first; CI runs both.
    case $command in
      "make quickstart" | "make test"*) echo "     not here: $command" && continue ;;
      *--dry-run*) codes="0 2" ;; # 2: a plan of what this machine has no room for
      *) codes=0 ;;
    esac
    check "$command" runs "$command"
  done <"$scratch/commands"
done
echo "$checks checks passed"
