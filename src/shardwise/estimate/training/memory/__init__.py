"""Memory of a chip in a training step: parameters, activations, and overheads of frameworks."""
