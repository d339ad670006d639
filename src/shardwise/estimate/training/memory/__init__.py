"""Memory of a chip in a training step: parameters, activations, what frameworks add."""
