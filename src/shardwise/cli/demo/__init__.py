"""The demo: every stage from measuring this machine to talking to a model trained on it."""
