# Tensor-parallel ranks quantize what they gather with scales of their own.
# File: llmc/model/projection_operands.cpp
# Builds: test/fp8_gathered
# Caught by: mpirun --oversubscribe --bind-to none -n 2 build/cpu/test/fp8_gathered
# Says: x is multiplied with .*, one rank's with
s/(travels && )!(f\.again)/\1\2/
