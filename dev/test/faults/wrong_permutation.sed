# The rows of q_proj enter in another order, as in a wrong conversion from Meta's layout.
# File: llmc/train/weights_io.cpp
# Builds: test_llama
# Caught by: build/cpu/test_llama dev/reference/dumps/gqa4 --dtype fp32
# Says: FAIL logits
s|^( *)(copy\(stream, to \+ done, numbers\.data\(\), numbers\.size\(\)\);)|\1if (stored.name.ends_with("q_proj.weight")) std::rotate(numbers.begin(), numbers.begin() + piece.tensor->columns, numbers.end());\n\1\2|
