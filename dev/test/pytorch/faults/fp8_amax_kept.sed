# The largest numbers of a pass are those of all passes so far.
# File: llmc/memory/scale_store.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 tensorwise
# Says: micro1.*scale_. .* differ
s/^( *)if \(words_\.needs_amax\(\)\) clear\(compute_, amax_, size_t\(tensors_\)\);//
