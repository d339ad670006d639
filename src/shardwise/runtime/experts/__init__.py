"""Mixture of experts: routing, and the dispatch of tokens to the chips of their experts."""
