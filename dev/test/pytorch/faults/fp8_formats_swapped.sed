# Inputs are e5m2 and output gradients e4m3.
# File: llmc/model/projection_operands.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 tensorwise
# Says: layers.0.qkv.forward.a is e5m2, expected e4m3
s/^( *)(q\.power_of_two = f\.settings->power_of_two;)/\1\2\n\1q.by_rows.format = q.by_columns.format = role == Role::input ? f.settings->gradient : Fp8Format::e4m3;/
