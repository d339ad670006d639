"""Compilation of programs in separate processes, with limits, classified failures and a cache."""
