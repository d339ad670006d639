"""Scripts of a shell, read without running a command: which commands they would run, and how.

`syntax` parses a script. `run` walks through it as a shell does: in order, through the branches
that its variables choose, with functions and loops. `expansion`, `arithmetic` and `conditions` are
chapters of the language's manual, https://www.gnu.org/software/bash/manual.
"""
