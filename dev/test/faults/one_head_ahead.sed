# The next head's keys and values set out behind this head's attention.
# File: llmc/model/context_attention.cpp
# Builds: test/test_overlap
# Caught by: build/cpu/test/test_overlap
# Says: what takes it holds up the next chunk
s/std::min\(kContextSlots, NKV\)/1/
s/head \+ kContextSlots/head + 1/
