#!/usr/bin/env bash
# Covers: what a start tells of itself: --version; run.json has command, commit, hosts and libraries of each start of a run;
# train.jsonl has times and tokens, also over a resume
# Timeout: 100
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"

"$train" --version >version.txt
check "--version begins with the version" grep -q '^train_llama [0-9.]*$' version.txt
check "  has the commit of the build" grep -qxF "commit     $(cut -d " " -f 2 "$build/commit")" version.txt
check "  how it was built" grep -q '^built      for the CPU.* by .*[0-9]$' version.txt
check "  and the libraries with their versions" grep -q '^libraries  .*PCRE2 10\.[0-9]*$' version.txt

options=(--layers 1 --seq-len 16 --global-batch 4 --val-every 2 --sample-every 0 --export off --checkpoint-every 2 --prompt "it's")
export LLMC_SECRET_TOKEN=do-not-store-this
begin=$EPOCHREALTIME
run told 1 --steps 4 --keep-checkpoints 0
rm -r "$(checkpoint told 4)"
resume told 2 auto
cat >look.py <<'END'
import datetime, json, shlex, socket, sys
begin, end, program, version = float(sys.argv[1]), float(sys.argv[2]), sys.argv[3], open("version.txt").read()
text = open("told/run.json").read()
facts = json.loads(text)
first, second = facts["starts"]
for start, step, ranks in (first, 0, "0"), (second, 2, "0-1"):
    assert start["first_step"] == step and start["ranks"] == step // 2 + 1, start
    assert start["hosts"] == [{"host": socket.gethostname(), "ranks": ranks, "device": start["hosts"][0]["device"]}], start
    assert f"commit     {start['commit']}\n" in version and f"built      {start['built']}\n" in version, start
    assert f"libraries  {', '.join(start['libraries'])}\n" in version, start
    started = datetime.datetime.strptime(start["time"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)
    assert begin - 1 <= started.timestamp() <= end, start["time"]
words = shlex.split(first["command"])
assert words[0] == program and words[words.index("--prompt") + 1] == "it's" and words[-4:-2] == ["--steps", "4"], words
assert "--resume auto" in second["command"] and "mpirun" in second["launcher"], second
assert facts["first_step"] == 2 and facts["ranks"] == 2
assert "do-not-store-this" not in text, "the environment is stored"
lines = [json.loads(line) for line in open("told/train.jsonl")]
times = [line["time"] for line in lines]
assert begin <= times[0] + 0.001 and times == sorted(times) and times[-1] <= end, times
steps = [(line["step"], line["tokens"]) for line in lines if "loss" in line]
assert steps == [(step, 64 * step) for step in (1, 2, 3, 4)], steps
END
check "run.json and train.jsonl" python3 look.py "$begin" "$EPOCHREALTIME" "$train" version.txt

echo "$checks checks passed"
