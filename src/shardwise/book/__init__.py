"""The worked problems of the scaling book and its companions, solved by this package.

In: `cases.json`, each problem with its given numbers and its answer. `chapters` solves them with
the functions that users call; `run` compares. Out: agreement, and errata of the text. Level 12.
The ids of some cases end in the edition of the book that has them, `-feb` or `-later`.
"""
