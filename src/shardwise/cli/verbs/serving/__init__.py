"""The serving form of verbs. Nothing here imports the training form."""
