"""One file for each chapter: the case's numbers in, the answer by the library out."""
