"""The flows: what happens in which order. They await the store and the upstream, and decide nothing else."""
