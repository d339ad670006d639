"""From a verb's function to a parsed command line, by typer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from shardwise.errors import BadInput

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="a preset (shardwise models), or a config.json")
]
Hardware = Annotated[
    str, typer.Argument(metavar="HARDWARE", help="a chip with its size: v5p:16x20x28, h100:64")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]


# Sections of a long help, in which an option stands that names one as its `rich_help_panel`.
WORK, SPLIT, RATES, TOLD = "The work", "The split", "What is expected", "What is told"


class Grouped(TyperCommand):
    """A command whose help has sections; an option that names none stands in that before it."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        last = "Options"
        for param in self.get_params(ctx):
            argument = param.param_type_name == "argument"
            last = last if argument else getattr(param, "rich_help_panel", None) or last
            if record := param.get_help_record(ctx):
                sections.setdefault("Arguments" if argument else last, []).append(record)
        for title, rows in sections.items():
            with formatter.section(title):
                formatter.write_dl(rows)


def call(name: str, function: Callable[..., Any], args: Sequence[str]) -> Any:
    """Call `function` with the options that it declares. None when it was asked for its help.

    Raises:
        BadInput: a missing argument, an unknown option, a value of the wrong kind.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    names = {"help_option_names": ["-h", "--help"]}
    app.command(cls=Grouped, context_settings=names)(function)
    command = typer.main.get_command(app)
    try:
        with command.make_context(name, list(args)) as context:
            return command.invoke(context)
    except typer.Exit:
        return None
    except typer.TyperException as error:
        said = error.format_message().strip().rstrip(".")
        raise BadInput(f"{said}. {name} --help shows what it takes.") from None
