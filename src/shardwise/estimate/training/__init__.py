"""A training step: what its parts take on chips and links, and what each chip holds."""
