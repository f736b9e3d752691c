# What the scripts share that try wrong programs, one at a time: each a text of a file that is something else instead, in
# a copy of the tree. Sourced behind lib.bash, which it needs.
#
# The script has `table`, lines of FILE # TEXT # INSTEAD # HOW, with HOW for its own use, or "survives: REASON" where
# nothing notices; and `notices HOW`, which looks at what is built in $copy, says how it noticed and succeeds if it did.
# shellcheck shell=bash
unset WERROR # a wrong program may have a variable that nobody uses

# copy_tree PROGRAM BUILT…: builds PROGRAM here, and $copy is a tree with that state, of build/cpu with BUILT besides the
# library, in which make builds what a change asks for.
copy_tree() {
  env -u LLMC_BUILD make DEVICE=cpu "$1" >"$scratch/make.txt" 2>&1 || { tail -n 20 "$scratch/make.txt" && fail "make"; }
  copy=$scratch/tree
  mkdir -p "$copy/build/cpu"
  cp -a Makefile scripts llmc dev train_llama.cu test_llama.cu "$copy"
  (cd build/cpu && cp -a --parents config.mk summary.txt flags files libllmc.a obj/llmc "${@:2}" "$copy/build/cpu")
}

# only_texts WORD…: with the word `texts` for all, whether each text of the table stands in its file, and nothing else.
only_texts() {
  [ "$*" = texts ] || return 0
  local row file text rows=0 missing=0
  while read -r row; do
    IFS='#' read -r file text _ <<<"$row"
    rows=$((rows + 1))
    grep -qF -- "$text" "$file" || { echo "$file does not say $text" && missing=$((missing + 1)); }
  done < <(table)
  echo "$((rows - missing)) of $rows texts stand in their files"
  [ "$missing" = 0 ] && [ "$rows" -gt 0 ]
  exit
}

# try_mutations PROGRAM HOW-OF-SURVIVORS [N…]: those of these numbers; none: all, or SAMPLE of them, chosen by the commit.
# The last line is "N passed, N failed; S s".
try_mutations() {
  local program=$1 of_survivors=$2 begin=$SECONDS passed=0 failed=0
  local rows number file text instead how whole says reason problem verdict
  shift 2
  mapfile -t rows < <(table)
  (only_texts texts) >"$scratch/texts" || { cat "$scratch/texts" && fail "texts that mutations replace"; }
  local chosen=("$@")
  [ $# -gt 0 ] || mapfile -t chosen < <(seq "${#rows[@]}" | some_of "${SAMPLE:-}" | sort -n)
  for number in "${chosen[@]}"; do
    IFS='#' read -r file text instead how <<<"${rows[number - 1]}"
    cp -p "$file" "$scratch/original"
    whole=$(<"$file")
    printf '%s\n' "${whole/"$text"/"$instead"}" >"$copy/$file"
    says="" reason="" problem="nothing notices"
    if [[ $how == survives:* ]]; then reason=${how#survives: } how=$of_survivors; fi
    if (cd "$copy" && env -u LLMC_BUILD make DEVICE=cpu "$program") >"$scratch/make.txt" 2>&1; then
      says=$(notices "$how") || says=""
    else
      problem=$(grep -m1 -a error "$scratch/make.txt")
    fi
    cp "$scratch/original" "$copy/$file"
    if [ -n "$says" ] && [ -z "$reason" ]; then
      passed=$((passed + 1)) verdict="caught by ${says:0:120}"
    elif [ -z "$says" ] && [ -n "$reason" ] && [ "$problem" = "nothing notices" ]; then
      passed=$((passed + 1)) verdict="survives: $reason"
    else
      failed=$((failed + 1)) verdict="FAIL: ${says:-$problem}"
    fi
    printf '%2d  %s: %s -> %s\n    %s\n' "$number" "$file" "$text" "${instead:-nothing}" "$verdict"
  done
  echo "$passed passed, $failed failed; $((SECONDS - begin)) s"
  [ "$failed" = 0 ] && [ "$passed" -gt 0 ]
}
