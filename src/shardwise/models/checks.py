"""Checks of the values of a config: whole numbers in range, true or false."""

from __future__ import annotations

from dataclasses import fields

# The largest dim or count that a description may have. The largest dim of any published model (a
# vocabulary) is below 10^6; beyond 2^31 - 1 an index no longer fits the 32 bits kernels use.
LARGEST = 2**31 - 1


def near_divisors(n: int, near: int) -> str:
    """The four divisors of `n` closest to `near`, as text: "4, 8, 16, 32"."""
    divisors = [divisor for divisor in range(1, min(n, 100_000) + 1) if n % divisor == 0]
    divisors.sort(key=lambda divisor: abs(divisor - near))
    return ", ".join(map(str, sorted(divisors[:4])))


def not_counts(where: str, value: object, *, zero_allowed: tuple[str, ...] = ()) -> list[str]:
    """Sentences on the `int` and `bool` fields of a dataclass that have an illegal value.

    Args:
        where: what the dataclass describes, for messages.
        value: the dataclass.
        zero_allowed: names of the fields that may be 0; others are at least 1.
    """
    problems = []
    for field in fields(value):  # type: ignore[arg-type]
        type_name = str(field.type)
        number = getattr(value, field.name)
        if type_name == "bool" and not isinstance(number, bool):
            problems.append(f"{field.name} {number!r} of {where} is not true or false.")
        is_optional = type_name == "int | None"
        if not (type_name == "int" or is_optional) or (is_optional and number is None):
            continue
        low = int(field.name not in zero_allowed)
        if isinstance(number, bool) or not isinstance(number, int):
            problems.append(f"{field.name} {number!r} of {where} is not a whole number.")
        elif not low <= number <= LARGEST:
            problems.append(f"{field.name} {short(number)} of {where} is {outside(number, low)}.")
    return problems


def outside(number: int, low: int) -> str:
    """How a number is outside [low, LARGEST]: "below 1" or "above 2,147,483,647, ..."."""
    if number < low:
        return f"below {low}"
    return f"above {LARGEST:,}, the largest dim"


def short(number: int) -> str:
    """A whole number as short text, however large it is."""
    if abs(number) < 10**15:
        return f"{number:,}"
    if abs(number) < 10**300:
        return f"{number:.3e}"
    return "beyond 1e300"
