# Scales of inputs and gradients are powers of two where they should be any, and the other way round.
# File: llmc/model/projection_operands.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 blockwise
# Says: layers.0.qkv.forward.scale_a .* differ
s/q\.power_of_two = f\.settings->power_of_two;/q.power_of_two = !f.settings->power_of_two;/
