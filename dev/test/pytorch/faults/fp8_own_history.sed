# Each rank follows the largest numbers that it has seen itself.
# File: llmc/memory/scale_store.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 2 delayed
# Says: step1.*scale_a .* differ
s/^( *)data_ranks_\.all_reduce_max\(communication_, seen_, size_t\(tensors_\)\);//
