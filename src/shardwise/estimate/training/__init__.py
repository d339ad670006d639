"""What a training step takes: time, traffic, memory."""
