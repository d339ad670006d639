"""The dataclasses of plan.json, and reading and writing them."""
