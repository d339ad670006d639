"""Verbs that plan serving. Nothing here imports the training verbs."""
