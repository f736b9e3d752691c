# The helpers of the script tests. Sourced after `set -euo pipefail`; makes a scratch folder, which goes when the script ends,
# and so does what `begin` has begun.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/${LLMC_BUILD:-build/cpu}
scratch=$(mktemp -d)
child=""
trap '[ -z "$child" ] || kill -TERM -- "-$child" 2>/dev/null || true; rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 NO_COLOR=1
export OMPI_MCA_pml=ob1 # Open MPI's choice on one machine, which takes it 0.3 s
train=$build/train_llama
checks=0

# in_own_tree: goes to a folder that looks like the tree and has a runs/ of its own: every run moves runs/latest.
in_own_tree() {
  local entry
  mkdir "$scratch/.tree"
  for entry in "$root"/*; do
    if [ "$entry" != "$root/runs" ]; then ln -s "$entry" "$scratch/.tree"; fi
  done
  cd "$scratch/.tree"
}

# fail MESSAGE…: ends the test.
fail() {
  echo "FAIL: $*"
  exit 1
}

# check WHAT COMMAND…: the command must succeed.
check() {
  checks=$((checks + 1))
  if "${@:2}"; then
    echo "ok   $1"
  else
    fail "$1"
  fi
}

# ranks N COMMAND…: on N ranks, for at most 100 s, or $limit, times PATIENCE (dev/test/run).
ranks() {
  local most=$((${limit:-100} * ${PATIENCE:-1}))
  if [ "$1" = 1 ]; then
    timeout -k 20 "$most" "${@:2}"
  else
    LLMC_THREADS=1 timeout -k 20 "$most" mpirun --oversubscribe --bind-to none -n "$1" "${@:2}"
  fi
}

# refused WHAT TEXT COMMAND…: the command must fail by itself and say TEXT.
refused() {
  local code=0
  "${@:3}" >"$scratch/refused" 2>&1 || code=$?
  checks=$((checks + 1))
  if [ "$code" -eq 0 ] || [ "$code" -ge 124 ]; then
    cat "$scratch/refused"
    fail "$1: exit code $code"
  fi
  if ! grep -qF -- "$2" "$scratch/refused"; then
    cat "$scratch/refused"
    fail "$1: did not say \"$2\""
  fi
  echo "ok   $1: $(grep -F -- "$2" "$scratch/refused" | head -n 1)"
}

# some_of K: K of the lines on standard input, or all if it is empty; the commit chooses, so that every push tries others.
some_of() {
  if [ -z "$1" ]; then
    cat
  else
    shuf -n "$1" --random-source=<(git -C "$root" rev-parse HEAD 2>/dev/null | sha512sum | head -c 100; yes)
  fi
}

# heads_model: the config.json of a small model of bytes with four heads, each of keys and values, too.
heads_model() {
  cat <<'EOF'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64, "intermediate_size": 96,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 16, "vocab_size": 256,
 "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "max_position_embeddings": 2048, "tie_word_embeddings": false,
 "hidden_act": "silu"}
EOF
}
# run NAME RANKS ARGUMENTS…: a training on so many ranks, with the script's `options` first; its folder is $scratch/NAME,
# and what it printed $scratch/NAME.txt.
options=()
run() { resume "$1" "$2" none "${options[@]}" "${@:3}"; }
# resume NAME RANKS FROM ARGUMENTS…: one that goes on from there, without these options. Standard input, which mpirun would
# read, is empty.
resume() {
  ranks "$2" "$train" --out "$scratch/$1" --resume "$3" "${@:4}" >"$scratch/$1.txt" 2>&1 </dev/null ||
    { cat "$scratch/$1.txt" && fail "the run $1"; }
}
# a_token_that_is_nan: a text in which ~ occurs once, $scratch/with.txt; one in which it does not, $scratch/without.txt; and
# a model whose embedding of ~ is NaN, $scratch/start, after a step with the test's options on the second text.
a_token_that_is_nan() {
  head -c 4000 "$root/dev/data/tinyshakespeare.txt" >"$scratch/without.txt"
  { head -c 1234 "$scratch/without.txt" && printf '~' && tail -c +1236 "$scratch/without.txt"; } >"$scratch/with.txt"
  heads_model >"$scratch/model.json"
  run start 1 --model "$scratch/model.json" --train-data "$scratch/without.txt" --steps 1
  python3 - "$scratch/start/export/model.safetensors" <<'EOF'
import json, struct, sys
with open(sys.argv[1], "r+b") as file:
    length = struct.unpack("<Q", file.read(8))[0]
    begin = json.loads(file.read(length))["model.embed_tokens.weight"]["data_offsets"][0]
    file.seek(8 + length + begin + ord("~") * 64 * 4)
    file.write(struct.pack("<f", float("nan")) * 64)
EOF
}
# checkpoint NAME STEP: the folder of the run's checkpoint.
checkpoint() { printf "$scratch/%s/checkpoints/step-%08d" "$1" "$2"; }
# says NAME TEXT: the run printed it.
says() { grep -qF -- "$2" "$scratch/$1.txt" || { cat "$scratch/$1.txt" && return 1; }; }
# tells WHAT TEXT run|resume NAME …: that run printed it.
tells() {
  "${@:3}"
  check "$1" says "$4" "$2"
}
says_not() { ! grep -qF -- "$2" "$scratch/$1.txt"; }
not() { ! "$@"; }
# losses FILE: "step loss" of each step of a train.jsonl.
losses() { sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1"; }
# without_times FILE: a train.jsonl without what clocks say: of a step, and of a look at the ranks the whole line.
without_times() { sed -E '/,"look":true,/d; s/,"(step_ms|tokens_per_s|mfu|time)":[^,}]*//g' "$1"; }
# log NAME: the run's train.jsonl, without what the clock says.
log() { without_times "$scratch/$1/train.jsonl"; }
# same_log, same_weights, same A B: two runs have the same bits, of all lines of the log, of the exported weights, of both.
same_log() { alike_lines "$1's log" "$2's log" <(log "$1") <(log "$2"); }
same_weights() { cmp "$scratch/$1/export/model.safetensors" "$scratch/$2/export/model.safetensors"; }
same() { same_weights "$@" && same_log "$@"; }
# ends_alike A B LINES: B went on where A was: its log is the last so many lines of A's, and the weights are the same. The
# lines include those that measure and sample at the step of the checkpoint.
ends_alike() { alike_lines "the end of $1's log" "$2's log" <(log "$1" | tail -n "$3") <(log "$2") && same_weights "$1" "$2"; }
# alike_lines A B FILE FILE: the same lines; else how many each has, and the first ones that differ. A and B name the files.
alike_lines() {
  cat "$3" >"$scratch/.lines"
  cat "$4" >"$scratch/.other-lines"
  if cmp -s "$scratch/.lines" "$scratch/.other-lines"; then return; fi
  echo "     $1 has $(wc -l <"$scratch/.lines") lines, $2 $(wc -l <"$scratch/.other-lines")"
  diff "$scratch/.lines" "$scratch/.other-lines" | head -n 8 | cut -c1-300
  return 1
}
# numbers NAME KEY: "step number" of each line of the run's train.jsonl that has one of this name.
numbers() { sed -n "s/.*\"step\":\([0-9]*\),.*\"$2\":\([^,}]*\).*/\1 \2/p" "$scratch/$1/train.jsonl"; }
# near A B COUNT FIRST REST: the losses of B (or, with key=NAME, others of its numbers) are so many, of the same steps as the
# last so many of A; the first differs by at most FIRST of itself, the others by at most REST.
near() {
  paste -d' ' <(numbers "$1" "${key:-loss}" | tail -n "$3") <(numbers "$2" "${key:-loss}") |
    awk -v what="${key:-loss}" -v a="$1" -v b="$2" -v count="$3" -v most_first="$4" -v most="$5" '
      { d = $4 / $2 - 1; if (d < 0) d = -d; if (NR == 1) first = d; else if (d > worst) worst = d }
      $1 != $3 || !(d >= 0) { wrong = 1 }
      END { printf "     %s against %s: %s, %d numbers, first differs by %.1e, others by at most %.1e\n", a, b, what, NR, first, worst
            exit wrong || NR != count || first > most_first || worst > most }'
}
# same_figures A B: the files have the same words, and numbers whose last digits differ by 1 at most: sums in another order
# may round to the next number.
same_figures() {
  paste -d '\n' "$1" "$2" | awk '
    NR % 2 { n = split($0, want); next }
    { if (NF != n) bad = 1
      for (i = 1; i <= NF; ++i) {
        last = want[i] ~ /^[0-9]+[.][0-9]+$/ ? 10 ^ (index(want[i], ".") - length(want[i])) : 0
        if ($i != want[i] && !(($i - want[i]) ^ 2 <= (1.01 * last) ^ 2 && $i ~ /^[0-9.]+$/)) { print "     " want[i], "and", $i; bad = 1 }
      } }
    END { exit bad || !NR }'
}
# falls NAME NATS: the last loss lies so much below the first.
falls() { numbers "$1" loss | awk -v least="$2" 'NR == 1 { first = $2 } END { exit !(first - $2 >= least) }'; }

# wait_for FILE PATTERN: within 200 s the file must say it. A machine that does other things may need most of them.
wait_for() {
  for _ in $(seq 2000); do
    if grep -q -- "$2" "$1" 2>/dev/null; then return; fi
    sleep 0.1
  done
  cat "$1"
  fail "did not print \"$2\""
}

# quick OPTIONS…: a run on one rank; $scratch/log has what it printed.
quick() { "$train" "$@" >"$scratch/log" 2>&1 || { cat "$scratch/log" && fail "$*"; }; }
# shows WHAT PATTERN OPTIONS…: such a run prints a line of that pattern.
shows() {
  quick "${@:3}"
  check "$1" grep -q -- "$2" "$scratch/log"
}

# odd_model [layers=N hidden=N ffn=N tied=BOOL]: a model of which no dimension is round, $scratch/odd.json, and a text of
# its few tokens, $scratch/letters.txt.
odd_model() {
  local layers=3 hidden=40 ffn=52 tied=true "$@"
  head -c 80000 "$root/dev/data/tinyshakespeare.txt" | tr -dc 'a-z \n' | tr 'a-z \n' '\1-\34' >"$scratch/letters.txt"
  cat >"$scratch/odd.json" <<END
{"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "hidden_size": $hidden,
 "num_hidden_layers": $layers, "num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 16,
 "intermediate_size": $ffn, "vocab_size": 97, "rms_norm_eps": 1e-5, "initializer_range": 0.05,
 "tie_word_embeddings": $tied, "max_position_embeddings": 512, "rope_theta": 10000.0}
END
}

# exits CODE COMMAND…: the command ends with that code; $scratch/out.txt has what it printed.
exits() {
  local code=0
  "${@:2}" >"$scratch/out.txt" 2>&1 || code=$?
  [ "$code" = "$1" ] || { cat "$scratch/out.txt" && echo "exit code $code instead of $1" && return 1; }
}
# said TEXT…: each stands in $scratch/out.txt.
said() {
  local text
  for text; do says out "$text" || { echo "     not said: $text" && return 1; }; done
}

# begin NAME PATTERN COMMAND…: in the background as $child, in a session of its own where SIGINT counts, until
# $scratch/NAME.txt, which has what it prints, says PATTERN.
begin() {
  : >"$scratch/$1.txt" # or an earlier one's lines may be taken for this one's
  setsid env --default-signal=INT "${@:3}" </dev/null >"$scratch/$1.txt" 2>&1 &
  child=$!
  wait_for "$scratch/$1.txt" "$2"
}
# ends SECONDS: $child ends within so many; its exit code is then $code.
ends() {
  local since=$EPOCHREALTIME
  code=0
  wait "$child" || code=$?
  child=""
  took=$(awk "BEGIN { print $EPOCHREALTIME - $since }")
  awk "BEGIN { exit !($took <= $1) }" || { echo "took $took s" && return 1; }
}

# hold_log FOLDER: holds the lock by which readers know that a run is under way, until release_log.
hold_log() {
  exec {held}>>"$1/train.jsonl"
  python3 -c 'import fcntl, struct, sys; fcntl.fcntl(int(sys.argv[1]), 37, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))' "$held" # F_OFD_SETLK
}
release_log() { exec {held}>&-; }
