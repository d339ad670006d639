"""The trainer around the step of a plan: data, the loop, checkpoints, the log. Level 9.

Text becomes tokens in shards (`tokenize`, `tokens`), sequences are drawn from them in an order that
is a function of one integer (`order`), a step is run on the devices that are there (`devices`,
`state`, `loop`), what goes wrong with numbers is kept out of the weights (`guard`), and everything
is saved so that a run continues bit by bit (`checkpoint`).
"""
