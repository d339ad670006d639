"""The blocks of the Transformer on what one chip holds."""
