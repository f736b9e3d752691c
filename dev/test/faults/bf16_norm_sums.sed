# The norm adds its squares in bf16.
# File: llmc/kernels/rows.cuh
# Builds: test_llama
# Caught by: build/cpu/test_llama dev/reference/dumps/gqa4 --dtype fp32
# Says: FAIL logits
s/for \(int j = 0; j < width; \+\+j\) sum \+= x\[j\];/for (int j = 0; j < width; ++j) sum = to_float(from_float<bf16>(sum + x[j]));/
