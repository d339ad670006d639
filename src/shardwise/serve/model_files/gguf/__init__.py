"""A model in a GGUF file, the format of llama.cpp: its config, weights and tokenizer."""
