"""Reports: results as text for a terminal, and as documents where a value alone is not one.

In: values of the rooms below. Out: blocks (lines, tables) that `style.render` lays out. Numbers are
formatted here and nowhere else. Level 12: reports know no command line and no book.
"""
