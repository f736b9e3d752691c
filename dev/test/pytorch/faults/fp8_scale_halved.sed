# One weight's scales are half of what they should be, and undone by their inverses.
# File: llmc/kernels/quantize_tile.cuh
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 rowwise
# Says: layers.1.o.forward.scale_b .* differ
s/return scale_of\(amax, largest_fp8\(operand\.format\), a\.power_of_two\);/return scale_of(amax, largest_fp8(operand.format), a.power_of_two) * (a.number == 17 ? 0.5f : 1.0f);/
