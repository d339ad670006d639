"""Published serving runs: read, predicted, scored."""
