#!/usr/bin/env bash
# Covers: scripts/wandb_sync follows a real run into an offline run of wandb, with exactly the values of train.jsonl
# Timeout: 300
#
# With an environment of its own: wandb is not among what the scripts install.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
cd "$root"
scripts/python_environment watch-wandb dev/test/watch/requirements.txt 1
package=$(cat dev/test/watch/requirements.txt)
check "the package is the one that the script names" grep -qF "\"$package\"" scripts/llmc_runs/wandb_sync.py
python=$root/build/watch-wandb/bin/python
export PYTHONPATH=$root/scripts WANDB_MODE=offline WANDB_SILENT=true
cd "$scratch"
"$train" --steps 20 --val-every 10 --sample-every 10 --export off --out run >train.txt 2>&1 &
until [ -s run/train.jsonl ]; do sleep 0.1; done
check "it follows a run to its end" timeout 100 "$python" -m llmc_runs.wandb_sync run
check "the run has ended by itself" wait "$!"
check "every value of train.jsonl is logged" "$python" "$root/dev/test/watch/wandb_check.py" run
sed -i '5s/"lr":/"lr":1/' run/train.jsonl
check "another value is seen" eval '! "$python" "$root/dev/test/watch/wandb_check.py" run 2>seen.txt && grep -q "line 5: lr" seen.txt'
echo "$checks checks passed"
