# A label is the token itself, not the one that follows it.
# File: llmc/train/sampler.cpp
# Builds: test/test_sampler
# Caught by: build/cpu/test/test_sampler
# Says: ERROR
s/std::copy_n\(tokens\.data\(\) \+ 1, with_label, labels \+ done\)/std::copy_n(tokens.data(), with_label, labels + done)/
