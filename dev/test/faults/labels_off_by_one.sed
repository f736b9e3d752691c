# A label is the token itself, not the one that follows it.
# File: llmc/train/sampler.cpp
# Builds: test/test_sampler
# Caught by: build/cpu/test/test_sampler
# Says: ERROR
s/std::copy_n\(inputs \+ 1, T_ - 1, labels\)/std::copy_n(inputs, T_ - 1, labels)/
