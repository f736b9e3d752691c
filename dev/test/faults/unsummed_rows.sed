# Partial sums of bf16 numbers are rounded before they are added, not after.
# File: llmc/model/tensor_parallel.cpp
# Builds: test_llama
# Caught by: source dev/test/lib.bash; ranks 2 build/cpu/test_llama dev/reference/dumps/gqa4 --dtype bf16 --tensor-parallel-degree 2
# Says: FAIL logits
s/cast\(stream_, own, sums, count\);/cast(stream_, own, partial, count);/
