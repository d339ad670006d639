"""Search of serving deployments: evaluates engines and batches as arrays and ranks them."""
