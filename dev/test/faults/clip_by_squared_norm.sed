# Gradients are clipped by clip/norm² instead of clip/norm, which AdamW hides.
# File: llmc/kernels/global_norm.cu
# Builds: kernels/global_norm
# Caught by: build/cpu/kernels/global_norm check
# Says: ^FAIL
s|limit / norm\b|limit / (norm * norm)|
