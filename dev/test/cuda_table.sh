#!/usr/bin/env bash
# Covers: the table of what the CUDA build's kernels use: a new kernel's line has its registers and spills; new, gone and worse
# ones are counted apart
# Timeout: 30
#
# A script stands for the disassembler, so this needs neither nvcc nor a disassembler.
set -euo pipefail
# shellcheck source=dev/test/lib.bash
source "$(dirname "$0")/lib.bash"
cd "$scratch"

# Two kernels of accumulate.cu, both new: one spills.
cat >cuobjdump <<'SH'
#!/usr/bin/env bash
echo "arch = sm_90a"
if [ "$1" = --dump-resource-usage ]; then
  printf ' Function %s:\n  REG:%s STACK:%s SHARED:0 LOCAL:0\n' _Z11spills_muchPf 64 32 _Z14spills_nothingPf 40 0
else
  printf ' Function : _Z11spills_muchPf\n  STL [R1], R2 ;\n  LDL R2, [R1] ;\n  LDL R3, [R1+0x4] ;\n Function : _Z14spills_nothingPf\n  EXIT ;\n'
fi
SH
chmod +x cuobjdump
known=$(grep -c $'^sm_90a\taccumulate: ' "$root/dev/test/cuda_baseline.tsv")
check "kernels that are not as the baseline has them: code 1" exits 1 python3 "$root/dev/test/cuda_table.py" --cuobjdump ./cuobjdump accumulate.cu.o
check "a new kernel's spills are told" grep -q '^FAIL .* spills_much is not in .*: 64 registers, stack 32, local loads 2, local stores 1: look' out.txt
check "  and that there are none" grep -q '^FAIL .* spills_nothing is not in .*: 40 registers, no stack: look' out.txt
check "new and gone ones are not worse" said "0 kernels as the baseline has them, 2 new, $known gone, 0 worse"
echo "$checks checks passed"
