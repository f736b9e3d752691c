# Weight gradients are rounded to bf16.
# File: llmc/kernels/cpu_matmul.cpp
# Builds: test_llama
# Caught by: build/cpu/test_llama dev/reference/dumps/gqa4 --dtype fp32
# Says: FAIL grad\..*proj
/a, stride, b, IC, dweight, IC, accumulate\}, cut\);/s|$| for (size_t i = 0; i < oc * ic; ++i) dweight[i] = to_float(from_float<bf16>(dweight[i]));|
