"""Call the function of a verb with the options of a command line, which typer parses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import typer
from typer.core import TyperCommand

from shardwise.cli.applicability import problems
from shardwise.errors import BadInput, raise_all


class AsWritten:
    """Passes the text of an option on as it was written: verbs parse their options themselves.

    It replaces typer's conversion, which imports pydantic.
    """

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        return value


class GroupedCommand(TyperCommand):
    """A command whose help lists options by group, and that refuses options which do not apply.

    An option without a group is listed in the group of the option before it.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        for param in params:
            if param.type_descriptor.annotation in (str, bool):
                param._runtime_param = AsWritten()
        return params

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        values, _, order = self.make_parser(ctx).parse_args(args=list(args))
        given = {
            param.name: values[param.name] for param in order if values[param.name] is not None
        }
        verb = str(ctx.info_name).removeprefix("shardwise ")
        raise_all(BadInput, problems(verb, self.get_params(ctx), given, order, args))
        return super().parse_args(ctx, args)

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        group = "Options"
        for param in self.get_params(ctx):
            title = "Arguments"
            if param.param_type_name != "argument":
                group = getattr(param, "rich_help_panel", None) or group
                title = group
            record = param.get_help_record(ctx)
            if record and title == "Arguments":  # all are words: their type says nothing
                record = (record[0].partition(" <")[0], record[1])
            if record:
                sections.setdefault(title, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


# Names of options with which other programs size the axes of a mesh, and the axes.
_AXES = {
    "tensor": "tensor", "pipe": "pipe", "data": "data", "context": "context", "expert": "expert",
    "tp": "tensor", "pp": "pipe", "dp": "data", "cp": "context", "ep": "expert", "fsdp": "fsdp",
}  # fmt: skip


def command_of(function: Callable[..., Any]) -> Any:
    """The command with the options that `function` declares."""
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    names = {"help_option_names": ["-h", "--help"]}
    app.command(cls=GroupedCommand, context_settings=names)(function)
    return typer.main.get_command(app)


def call(name: str, function: Callable[..., Any], args: Sequence[str]) -> Any:
    """Call `function` with the options of `args`; return None after `--help`.

    Args:
        name: of the command, for its help and errors.

    Raises:
        BadInput: a missing argument, an unknown option, a value of the wrong kind.
    """
    command = command_of(function)
    try:
        with command.make_context(name, list(args)) as context:
            return command.invoke(context)
    except typer.Exit:
        return None
    except typer.TyperException as error:
        problem = error.format_message().strip().rstrip(".")
        option = str(getattr(error, "option_name", "")).lstrip("-")
        if option in _AXES and any(_fixes_axes(parameter) for parameter in command.params):
            problem = f"No such option: --{option}. Size an axis by --fix {_AXES[option]}=N"
        raise BadInput(f"{problem}. {name} --help lists the options.") from None


def _fixes_axes(parameter: Any) -> bool:
    return "--fix" in parameter.opts and not parameter.is_flag
