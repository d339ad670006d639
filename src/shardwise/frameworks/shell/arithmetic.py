"""Arithmetic of whole numbers: `$((2 * NODES))`, `let N=2`, `(( TP > 4 ))`.

https://www.gnu.org/software/bash/manual/html_node/Shell-Arithmetic.html
"""

from __future__ import annotations

import ast
import operator
import re
from collections.abc import Callable

LONGEST = 200  # characters
MOST_PLACES = 64  # of a shift, and of a power of two
_CHOICE = re.compile(r"\(([^()]*\?[^()]*)\)")  # in the innermost parentheses


def _power(number: int, exponent: int) -> int:
    """A power; 0 for one that no size has, and a ValueError for a fraction."""
    if exponent < 0:
        raise ValueError("a shell has whole numbers only")
    return number**exponent if number.bit_length() * exponent <= MOST_PLACES else 0


_OPERATORS: dict[type[ast.operator] | type[ast.cmpop], Callable[[int, int], int]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.floordiv,  # of whole numbers, as in a shell
    ast.Mod: operator.mod,
    ast.Pow: _power,
    ast.LShift: lambda number, places: number << min(places, MOST_PLACES),
    ast.RShift: operator.rshift,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


def value(terms: str) -> int | None:
    """The value of an expression whose variables are put in; None if it is no known number.

    >>> value("2 * (3 + 4)"), value("8 > 4 && 1"), value("1 / 0")
    (14, 1, None)
    >>> value("2**3"), value("2 * (16 / 2 > 4 ? 8 : 4)")
    (8, 16)
    """
    terms = terms.strip()
    if len(terms) > LONGEST:
        return None
    while choice := _CHOICE.search(terms):
        terms = terms[: choice.start()] + str(value(choice[1])) + terms[choice.end() :]
    condition, is_choice, values = terms.partition("?")
    if "?" in values:
        return None  # of several, without parentheses
    if is_choice:
        return value(values.rpartition(":")[0 if value(condition) else 2])
    terms = terms.replace("&&", " and ").replace("||", " or ")
    if len(terms) > LONGEST or not re.fullmatch(r"(?:[\d\s+\-*/%()<>=!]|and|or)+", terms):
        return None
    try:
        return _value(ast.parse(terms, mode="eval").body)
    except (SyntaxError, KeyError, ValueError, ZeroDivisionError):
        return None


def _value(node: ast.expr) -> int:
    """The value of an expression of whole numbers.

    Raises:
        KeyError: it has another operator.
        ValueError: it has another kind of term.
    """
    match node:
        case ast.Constant(value=int(number)):
            return number
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.BinOp(left=left, op=op, right=right):
            return _OPERATORS[type(op)](_value(left), _value(right))
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            return int(_OPERATORS[type(op)](_value(left), _value(right)))
        case ast.BoolOp(op=op, values=values):
            are = [bool(_value(value)) for value in values]
            return int(all(are) if isinstance(op, ast.And) else any(are))
    raise ValueError(ast.dump(node))
