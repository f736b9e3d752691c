# One tensor's scale is twice what it should be, and undone by its inverse.
# File: llmc/kernels/quantize_tile.cuh
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 tensorwise
# Says: layers.0.down.dgrad.scale_a .* differ
s/return scale_of\(amax, largest_fp8\(operand\.format\), a\.power_of_two\);/return scale_of(amax, largest_fp8(operand.format), a.power_of_two) * (a.number == 0x40000000u - 11 ? 2.0f : 1.0f);/
