# Every rank trains on the first rank's batch.
# File: train_llama.cu
# Builds: train_llama
# Caught by: dev/test/ranks_agree.sh
# Says: FAIL: 2 ranks are 1
s|sampler_->fill\(layout, step, k, mesh\.data_rank\(\),|sampler_->fill(layout, step, k, 0,|
