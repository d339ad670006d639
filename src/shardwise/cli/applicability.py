"""Options of a command line that do not apply: given twice, without a value, or to other work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Given = Mapping[str, Any]  # parameter of a verb -> its value on the command line


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Options of a verb that have no meaning in some of its uses.

    Args:
        verbs: as their help names them, `plan --serve`.
        use: whether the command line is such a use.
        parameters: of the verb, those without a meaning there; all others have one.
        all_but: all parameters of the verb but these have no meaning there.
        reason: what follows the names of the options in the error.
    """

    verbs: tuple[str, ...]
    use: Callable[[Given], bool]
    parameters: tuple[str, ...] = ()
    all_but: tuple[str, ...] = ()
    reason: str

    def refuses(self, parameter: str) -> bool:
        """Whether a parameter has no meaning in this use."""
        if self.all_but:
            return parameter not in self.all_but
        return parameter in self.parameters


def _is_matmul(given: Given) -> bool:
    return "[" in "".join((given.get("words") or ())[:1])


LIMITS = (
    Limit(
        verbs=("fit",),
        use=lambda given: "train" in given,
        parameters=("context", "batch", "kv_dtype"),
        reason="for --serve only; the state of training is the same for every batch.",
    ),
    Limit(
        verbs=("fit",),
        use=lambda given: "train" not in given,
        parameters=("optimizer",),
        reason="for --train only.",
    ),
    Limit(
        verbs=("models",),
        use=lambda given: "kv" not in given and "flops" not in given,
        parameters=("seq",),
        reason="for --kv and --flops only.",
    ),
    Limit(
        verbs=("models",),
        use=lambda given: "kv" not in given,
        parameters=("dtype",),
        reason="for --kv only.",
    ),
    Limit(
        verbs=("roofline",),
        use=_is_matmul,
        parameters=("batch", "seq", "dtype"),
        reason="for an operation of a model only; a matmul has its sizes and dtypes.",
    ),
    Limit(
        verbs=("roofline",),
        use=lambda given: not _is_matmul(given),
        parameters=("on",),
        reason="for a matmul only. Write MODEL CHIP --op NAME.",
    ),
    Limit(
        verbs=("explain", "explain --serve"),
        use=lambda given: not given.get("hardware"),
        all_but=("plan", "hardware", "serve", "what_if", "verbose", "json"),
        reason="a saved plan has its own. Name MODEL HARDWARE.",
    ),
    Limit(
        verbs=("sweep",),
        use=lambda given: "json" in given,
        parameters=("output",),
        reason="--json is another format. Ask for one of them.",
    ),
    Limit(
        verbs=("sweep --serve",),
        use=lambda given: "json" in given,
        parameters=("file",),
        reason="--json is another format. Ask for one of them.",
    ),
    Limit(
        verbs=("validate",),
        use=lambda given: "serve" not in given,
        parameters=("every",),
        reason="for --serve only; rows of training are counted by their quality.",
    ),
    Limit(
        verbs=("hw",),
        use=lambda given: (given.get("words") or [""])[0] in ("diff", "measure"),
        parameters=("slices",),
        reason="for a chip only: shardwise hw v5e --slices.",
    ),
)


def problems(
    verb: str, params: Sequence[Any], given: Given, order: Sequence[Any], args: Sequence[str]
) -> list[str]:
    """What is wrong with the options of a command line, before their values are parsed.

    Args:
        verb: as its help names it.
        given: value of each parameter on the command line.
        order: the parameters in the order of the command line, one for each time it is given.
        args: the words of the command line.
    """
    options = [param for param in params if param.param_type_name == "option"]
    names = {param.name: _written(param, args) for param in options if param.name in given}
    found: list[str] = []
    if "help" in given:
        return found
    for param in params:
        if param.param_type_name == "argument" and given.get(param.name) == "":
            found.append(f"{param.metavar} is empty.")
    for param in options:
        if param.name not in names:
            continue
        name = names[param.name]
        is_plain_flag = param.is_flag and not param.secondary_opts
        if order.count(param) > 1 and not is_plain_flag:
            found.append(_repeated(param, args))
        value = given[param.name]
        if isinstance(value, str) and not value.strip():
            found.append(f"{name} is empty. Give it a value, or leave it out.")
    for limit in LIMITS:
        if verb in limit.verbs and limit.use(given):
            refused = [name for parameter, name in names.items() if limit.refuses(parameter)]
            if refused:
                found.append(f"{', '.join(refused)}: {limit.reason}")
    return found


def _repeated(param: Any, args: Sequence[str]) -> str:
    written = [name for name in (*param.opts, *param.secondary_opts) if name in args]
    if param.secondary_opts and len(written) > 1:
        return f"{' and '.join(written)} contradict each other. Give one of them."
    return f"{_written(param, args)} is given twice."


def _written(param: Any, args: Sequence[str]) -> str:
    """The name of an option as it is written on the command line."""
    for name in (*param.opts, *param.secondary_opts):
        if any(word == name or word.startswith(f"{name}=") for word in args):
            return str(name)
    return str(param.opts[0])
