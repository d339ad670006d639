"""Parts that records of training and serving share: checked fields, models, machines, scores."""
