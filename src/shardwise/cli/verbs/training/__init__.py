"""Verbs that plan training. Nothing here imports the serving verbs."""
