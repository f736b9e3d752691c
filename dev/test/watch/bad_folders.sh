#!/usr/bin/env bash
# Covers: scripts/tensorboard, report and wandb_sync refuse what is no run, and say file and line of a broken one; a
# report is there whole or as it was before
# Timeout: 300
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$scratch"
good='{"step":1,"loss":2.5}'
run() { # NAME TEXT: the folder of a run with this train.jsonl
  mkdir "$1" && printf '%b' "$2" >"$1/train.jsonl"
}
mkdir folder
run empty ''
run broken "$good\n$good\n{\"step\":2,\"loss\n$good\n"
run list "$good\n[1,2]\n"
run without_step "$good\n{\"loss\":1}\n"
run deep "$good\n{\"step\":2,\"loss\":$(printf '[%.0s' {1..200000})\n"
run huge_number "$good\n{\"step\":2,\"loss\":1$(printf '0%.0s' {1..400})}\n"
run huge_step "$good\n{\"step\":1$(printf '0%.0s' {1..400}),\"loss\":1}\n"
run good "$good\n"
run torn '{"step":1,"lo'
run bad_config "$good\n" && echo '{"lr":' >bad_config/config.json
echo '{"auths":"key"}' >key.json && ln -s good linked_folder
for file in config.json run.json memory.txt train.jsonl; do
  run "link_$file" "$good\n" && ln -sf ../key.json "link_$file/$file"
done
commands=("$root/scripts/tensorboard --no-server" "$root/scripts/report -o $scratch/page.html")
for command in "${commands[@]}"; do
  # shellcheck disable=SC2206  # words
  words=($command) name=$(basename "${words[0]}")
  refused "$name: no such folder" "nowhere is not a folder" "${words[@]}" nowhere
  refused "$name: no train.jsonl" "folder has no train.jsonl" "${words[@]}" folder
  refused "$name: an empty run" "nothing to show" "${words[@]}" empty
  refused "$name: a broken line" 'broken/train.jsonl:3: expected an object with a "step", found: {"step":2,"loss' "${words[@]}" broken
  refused "$name: a line that is no object" "list/train.jsonl:2:" "${words[@]}" list
  refused "$name: a line without a step" "without_step/train.jsonl:2:" "${words[@]}" without_step
  for number in deep huge_number huge_step; do
    refused "$name: $number" "$number/train.jsonl:2:" "${words[@]}" "$number"
  done
  refused "$name: a broken config" "bad_config/config.json" "${words[@]}" bad_config
  for file in config.json train.jsonl; do
    refused "$name: a $file that is a link elsewhere" "outside of the run's folder" "${words[@]}" "link_$file"
  done
  refused "$name: a run twice" "is named twice" "${words[@]}" good ./good
  refused "$name: nothing" "usage: scripts/$name" "${words[@]}"
done
refused "report: no such place" "cannot write nowhere/page.html" "$root/scripts/report" good -o nowhere/page.html
refused "tensorboard: a wrong port" "invalid port value: '99999999'" "$root/scripts/tensorboard" good --port 99999999
"$PYTHON" -c 'import socket, time
server = socket.create_server(("localhost", 0))
print(server.getsockname()[1], flush=True)
time.sleep(60)' >port &
taken=$!
until [ -s port ]; do sleep 0.1 && kill -0 "$taken"; done
refused "tensorboard: a port that is taken" "TensorBoard does not start" "$root/scripts/tensorboard" good --port "$(cat port)"
kill "$taken"
check "report: an empty run next to a good one is left out" "$root/scripts/report" good empty -o page.html

# A page is there whole or as it was before.
ln -s page.html link.html && cp page.html before.html
refused "report: no room" "cannot write link.html: File too large" \
  bash -c 'ulimit -f 100 && exec "$@"' bash "$root/scripts/report" good -o link.html
check "report: the page is as it was" cmp page.html before.html
check "report: a link stays one" eval '"$root/scripts/report" good -o link.html && [ -L link.html ] && [ -s page.html ]'
check "report: no other file is left" eval '! compgen -G "*.partial"'
check "report: into a pipe" eval '"$root/scripts/report" good -o /dev/stdout | grep "^</html>"'
run stuck "$good\n" && mkfifo stuck/config.json
"$root/scripts/report" stuck -o page.html &
stuck=$!
exec 8>stuck/config.json # it has begun to read
kill "$stuck"
code=0 && wait "$stuck" || code=$?
check "report: SIGTERM is no success" [ "$code" -eq 130 ]

# A run that goes away.
run away "$good\n"
hold_log away
refused "tensorboard: the run goes away" "cannot read away/train.jsonl: No such file" \
  bash -c '{ until compgen -G "away/tensorboard/events*"; do sleep 0.1; done; rm -r away; } & exec "$@"' bash \
  "$root/scripts/tensorboard" --no-server away
release_log

# Without wandb: a module of this name that cannot be imported.
mkdir hidden && echo 'raise ImportError("hidden")' >hidden/wandb.py
refused "wandb_sync: wandb is not there" "build/watch/bin/pip install --require-hashes -r dev/test/watch/requirements.txt" \
  env PYTHONPATH="$scratch/hidden" "$root/scripts/wandb_sync" good
refused "wandb_sync: no such folder" "nowhere is not a folder" "$root/scripts/wandb_sync" nowhere
refused "wandb_sync: an empty run" "nothing to log" "$root/scripts/wandb_sync" empty
refused "wandb_sync: half a line" "nothing to log" "$root/scripts/wandb_sync" torn
echo "$checks checks passed"
