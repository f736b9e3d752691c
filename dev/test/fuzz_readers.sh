#!/usr/bin/env bash
# Covers: bad input: files of wrong structure for each reader of files from strangers end with success or an error, and take
# neither 1 GiB nor seconds; make test-fuzz has more of them, under AddressSanitizer
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$root"
"$build/test/fuzz_readers" --count 1800
