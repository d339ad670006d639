"""Reports: results as text for a terminal, and as JSON documents.

A report takes the result of a lower layer (a plan, a verdict, a sweep) and yields blocks (lines
and tables), which `style.render` lays out. Numbers are formatted in this package and nowhere else.
Level 12: reports do not import the command line or the book.
"""
