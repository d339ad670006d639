"""The training form of verbs. Nothing here imports the serving form."""
