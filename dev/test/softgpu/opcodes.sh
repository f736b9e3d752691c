#!/usr/bin/env bash
# Covers: the software GPU: 131 instructions of PTX give what the text of the ISA says
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/../lib.bash"
opcodes=$root/dev/test/softgpu/opcodes.py
check "opcodes.txt" "$opcodes" "$build/softgpu/run_kernel" "$scratch/opcodes"

# Seen failing: a wrong expectation, and an instruction that does not exist.
wrong() { # SED
  sed "$1" "$root/dev/test/softgpu/opcodes.txt" >"$scratch/wrong.txt"
  "$opcodes" "$build/softgpu/run_kernel" "$scratch/opcodes" "$scratch/wrong.txt"
}
refused "another rounding" "FAIL  fma.rn.f32" wrong 's/^fma.rm/fma.rn/'
refused "an unknown modifier" "not executed: .rz" wrong 's/^fma.rm/fma.rz.rm/'
refused "an unknown opcode" "this opcode is not executed" wrong 's/^copysign/testp.number/'
check "  with what to do" grep -q "add it to dev/softgpu/opcodes.py" "$scratch/refused"
echo "$checks checks passed"
