# Compute awaits the softmax's parts before it goes on to the next chunk of logits.
# File: llmc/model/head.cpp
# Builds: test/test_overlap
# Caught by: build/cpu/test/test_overlap
# Says: it holds up what fills the next chunk
s/sizeof\(SoftmaxPart\), slot\);/&\n  context.tensor->await_exchanged(context.stream, slot);/
