# Of one weight the transpose stays as it was in the first step.
# File: llmc/memory/quantized_weights.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 tensorwise
# Says: step1.*layers.0.gate_up.dgrad.b .* differ
s/^( *)(q\.power_of_two = settings_\.power_of_two;)/\1\2\n\1static int made = 0;\n\1if (number == 7 \&\& made++ > 0) q.by_columns = {};/
