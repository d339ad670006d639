"""An operation of a compiled program in the terms of the book's chapter on profiling.

text          read the text of a program from a file, or of single lines of one
program       the program with its mesh, chip and planned operations
of_plan       the program of a plan, as `check` compiles it
arrays        dtype, layout, tiles, padding and memory of an array
devices       replica groups as mesh axes
bounds        the lower bound of an operation's time on a chip
operation     the operation itself: what it computes, and which einsum of the model it is
search        the operation of a name, the operations of a prefix, the largest operations
"""
