# The inverse of output gradients' scales is twice what it should be.
# File: llmc/kernels/quantize_tile.cuh
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 delayed
# Says: layers.1.qkv.wgrad.scale_a .* differ
s|1\.0f / scale : 1\.0f;|(operand.format == Fp8Format::e5m2 ? 2.0f : 1.0f) / scale : 1.0f;|
