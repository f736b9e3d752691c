# A validation leaves traces in the history.
# File: llmc/memory/scale_store.cpp
# Builds: test/fp8_operands
# Caught by: dev/test/pytorch/fp8_operands.sh 1 delayed history=1
# Says: step1.*scale_. .* differ
s/settings_\.delayed\(\) && training \? seen_/settings_.delayed() ? seen_/
