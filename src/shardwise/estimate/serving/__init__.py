"""Estimates of an inference engine: time of a pass, memory of a chip, steady state under traffic.

In: the program of a pass (`ops.forward`), the chip, costs of collectives, tokens of the pass
(`Load`). Out: seconds by activity. Book §7 and §8. Functions take single numbers, or arrays with
one element per layout or batch.
"""
