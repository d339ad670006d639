"""The trainer around the training step of a plan: data, loop, checkpoints, metrics. Level 9.

Text becomes shards of tokens (`tokenize`, `tokens`). The order of sequences is a function of one
seed (`data_order`). The step runs on the available devices (`devices`, `state`, `loop`), bad
numbers never reach the weights (`guard`), and a run resumes bit by bit (`checkpoint`).
"""
