# What the script tests share. Sourced after `set -euo pipefail`; gives a scratch folder that goes with the script.
# shellcheck shell=bash
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
build=$root/${LLMC_BUILD:-build/cpu}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 NO_COLOR=1
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

# ranks N COMMAND…: on N ranks, for at most 100 s, or $limit.
ranks() {
  if [ "$1" = 1 ]; then
    timeout "${limit:-100}" "${@:2}"
  else
    LLMC_THREADS=1 timeout "${limit:-100}" mpirun --oversubscribe --bind-to none -n "$1" "${@:2}"
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
# losses FILE: "step loss" of each step of a train.jsonl.
losses() { sed -n 's/.*"step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1"; }
# without_times FILE: a train.jsonl without what the clock says.
without_times() { sed 's/,"step_ms":[^,]*,"tokens_per_s":[^,}]*//' "$1"; }

# wait_for FILE PATTERN: within 60 s the file must say it.
wait_for() {
  for _ in $(seq 600); do
    if grep -q -- "$2" "$1" 2>/dev/null; then return; fi
    sleep 0.1
  done
  cat "$1"
  fail "did not print \"$2\""
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
