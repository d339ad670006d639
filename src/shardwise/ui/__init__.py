"""The page: a server on this machine that answers it, and the page frozen into one file.

`frame` makes all that the page shows of one plan. The same frame is sent by the server while a
slider moves, and written into the file that opens from disk. Level 13.
"""
