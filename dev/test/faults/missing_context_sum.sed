# Gradients are not summed over the ranks that share sequences out.
# File: llmc/train/rank_groups.h
# Builds: test/meshes
# Caught by: source dev/test/lib.bash; ranks 2 build/cpu/test/meshes
# Says: 2 context .* the gradient of .* is off by
s/reduce = all\.split\(mesh\.group\(\{Axis::shard, Axis::context\}\)\)/reduce = all.split(mesh.group({Axis::shard}))/
