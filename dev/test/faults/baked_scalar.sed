# A number that changes from step to step is an argument of a kernel, which a captured step repeats as it was.
# File: llmc/train/optimizer.cpp
# Builds: test/step_graphs
# Caught by: build/cpu/test/step_graphs some
# Says: other losses or norms with graphs
s/s\.first, s\.n, constants_, amax/s.first, s.n, (constants_.eps *= 1.5f, constants_), amax/
