# A document's first token is predicted from the document before.
# File: llmc/train/documents.cpp
# Builds: test/test_documents
# Caught by: build/cpu/test/test_documents
# Says: ERROR
s/if \(rule\.begins \? labels\[t\] == rule\.token/if (rule.begins ? false/
