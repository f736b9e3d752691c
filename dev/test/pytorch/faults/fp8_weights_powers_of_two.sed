# The same of weights.
# File: llmc/memory/quantized_weights.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 tensorwise
# Says: layers.0.qkv.dgrad.scale_b .* differ
s/settings_\.power_of_two, words\.may_lack_scale\};/!settings_.power_of_two, words.may_lack_scale};/
