# Tensor-parallel ranks quantize a weight by the largest number of their own part of it.
# File: llmc/memory/parameter_store.cpp
# Builds: test/fp8_gathered
# Caught by: mpirun --oversubscribe --bind-to none -n 2 build/cpu/test/fp8_gathered
# Says: weight is multiplied with .*, one rank's with
s/if \(!sharding_\.tensor_gather\) return;/if (!sharding_.tensor_gather || count > 0) return;/
