"""Measured rates of the inference engine on this CPU, for plans of serving on it.

`rates` times the engine's own operations: products, attention, drawing. `server` times what a
server of a tiny model takes for each request, pass and sequence. Keys are names of figures of a
chip's file.
"""
