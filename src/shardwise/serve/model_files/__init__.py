"""What a model is served from: a folder of published weights, a GGUF file or a package."""

from shardwise.serve.model_files.find import find_model
from shardwise.serve.model_files.served_model import ServedModel

__all__ = ["ServedModel", "find_model"]
