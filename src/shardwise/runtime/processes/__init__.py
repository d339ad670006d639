"""The processes of a run on several hosts."""
