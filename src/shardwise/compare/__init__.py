"""Planned, compiled and measured side by side, with the cause of each gap as a value. Level 11."""
