#!/usr/bin/env bash
# Covers: checks that can fail: wrong programs (clip/norm², a wrong q/k permutation, bf16 softmax, norm sums or weight
# gradients, another rank's batch, labels off by one, borders of documents that are not masked or predicted, files not
# forced to the disk, a number of the step that a graph repeats, FP8 scales that tensor-parallel ranks do not agree on)
# are each caught
# Timeout: 900
#
# Six of them, chosen by the commit; all with WRONG_PROGRAMS=every (make mutate). faults_apply looks at all.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
# shellcheck source=dev/test/faults.bash
source "$(dirname "$0")/faults.bash"
[ "${WRONG_PROGRAMS:-}" = every ] || few=6
each_fault dev/test/faults "${few:-}"
echo "$checks checks passed"
