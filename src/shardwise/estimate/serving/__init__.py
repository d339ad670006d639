"""Estimates of an inference engine: time of a pass, memory of a chip, steady traffic.

In: the program of a pass (`ops.forward`), the chip, costs of collectives, tokens of the pass
(`Load`). Out: seconds by what spends them. Book §7 and §8. Numbers or arrays of them.
"""
