# A rank quantizes its part of the weights with a scale of that part.
# File: llmc/memory/fp8_gather.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 2 tensorwise stage=3 all-gather
# Says: forward.scale_b .* differ
s/sharding_\.agree\(communication_, largest, size_t\(count \* kProducts\)\);/(void)largest;/
