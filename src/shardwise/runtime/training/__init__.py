"""The training step of a plan: microbatches, pipeline, gradient sums, optimizer."""
