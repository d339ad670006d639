"""An inference engine: the seconds of one pass, the memory of a chip, and steady traffic.

In: the works of a pass (`ops.forward`), the chip, costs of collectives, what the pass computes
(`Load`). Out: seconds by what spends them. Book §7 and §8. Numbers or arrays of them.
"""
