"""The worked problems of the scaling book and its companions, solved by this package.

In: `cases.json`, which has each problem with its given numbers and its answer. `chapters` solves
the problems with the functions that users call, and `run` compares the answers. Out: the cases that
agree, and the errata of the book. Level 12.

Some problems have other numbers in the two editions of the book. The ids of their cases end in
`-feb` (text of February 2025) or `-later`.
"""
