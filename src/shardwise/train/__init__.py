"""Training runs: data, training loop, checkpoints and metrics around the step of a plan. Level 9.

`tokenize` and `tokens` convert text to shards of tokens. `data_order` derives the order of all
sequences from one seed. `devices`, `state` and `loop` run the step on the available devices.
`guard` keeps NaN, inf and loss spikes out of the weights. `checkpoint` saves a run so that it
resumes with identical bits.
"""
