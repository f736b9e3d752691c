# The softmax's probabilities are rounded to bf16.
# File: llmc/kernels/attention_plain_forward.cu
# Builds: test_llama
# Caught by: build/cpu/test_llama dev/reference/dumps/gqa4 --dtype fp32
# Says: FAIL logits
s/const float e = (exp_f32\(p\[c \+ j\] - softmax\.top\));/const float e = to_float(from_float<bf16>(\1));/
