"""Checks that every config value shares: whole, in range, true or false."""

from __future__ import annotations

from dataclasses import fields

# The widest dim or count a description may hold. The widest dim of any published model (a
# vocabulary) is below 10^6; beyond 2^31 - 1 an index no longer fits the 32 bits kernels use.
LARGEST = 2**31 - 1


def near_divisors(n: int, near: int) -> str:
    divisors = [d for d in range(1, min(n, 100_000) + 1) if n % d == 0]
    return ", ".join(str(d) for d in sorted(sorted(divisors, key=lambda d: abs(d - near))[:4]))


def not_counts(where: str, value: object, *, zero_allowed: tuple[str, ...] = ()) -> list[str]:
    """Worded problems of the whole-number fields of a config dataclass."""
    problems = []
    for field in fields(value):  # type: ignore[arg-type]
        kind, number = str(field.type), getattr(value, field.name)
        if kind == "bool" and not isinstance(number, bool):
            problems.append(f"{field.name} {number!r} of {where} is not true or false.")
        if kind not in ("int", "int | None") or (kind == "int | None" and number is None):
            continue
        low = 0 if field.name in zero_allowed else 1
        if isinstance(number, bool) or not isinstance(number, int):
            problems.append(f"{field.name} {number!r} of {where} is not a whole number.")
        elif not low <= number <= LARGEST:
            side = f"below {low}" if number < low else f"above {LARGEST:,}, the largest dim"
            problems.append(f"{field.name} {short(number)} of {where} is {side}.")
    return problems


def short(number: int) -> str:
    """A whole number for a message, however large."""
    if abs(number) < 10**15:
        return f"{number:,}"
    return f"{number:.3e}" if abs(number) < 10**300 else "beyond 1e300"
