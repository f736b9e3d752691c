# Attention sees across the borders of packed documents.
# File: llmc/model/block.cpp
# Builds: test_llama
# Caught by: build/cpu/test_llama dev/reference/dumps/packed --dtype fp32
# Says: FAIL grad
s/shape\.document_start = context\.document_start/shape.document_start = nullptr/
