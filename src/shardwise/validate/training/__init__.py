"""Published training runs: read, predicted, scored."""
