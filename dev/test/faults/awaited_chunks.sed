# Compute awaits each chunk of a scatter before the product that leaves the next one.
# File: llmc/model/tensor_parallel.cpp
# Builds: test/test_overlap
# Caught by: build/cpu/test/test_overlap
# Says: it holds up what fills the next chunk
/cast\(stream_, own, sums, count\);/a await_scattered(compute, file, line);
