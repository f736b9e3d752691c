# The third step has the scales of the second.
# File: llmc/memory/scale_store.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 delayed
# Says: step2.*scale_. .* differ
s/^( *)(update_delayed_scales\(compute_,)/\1if (recorded_ == 1 \&\& ++recorded_) return;\n\1\2/
