"""Search of serving deployments: engines and batches, evaluated in arrays and chosen."""
