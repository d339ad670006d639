"""From a verb's function to a parsed command line, by typer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from shardwise.errors import BadInput

Model = Annotated[
    str, typer.Argument(metavar="MODEL", help="a preset (shardwise models), or a config.json")
]
Hardware = Annotated[
    str, typer.Argument(metavar="HARDWARE", help="a chip with its size: v5p:16x20x28, h100:64")
]
Json = Annotated[bool, typer.Option("--json", help="print one JSON document")]


def call(name: str, function: Callable[..., Any], args: Sequence[str]) -> Any:
    """Call `function` with the options that it declares. None when it was asked for its help.

    Raises:
        BadInput: a missing argument, an unknown option, a value of the wrong kind.
    """
    app = typer.Typer(add_completion=False, rich_markup_mode=None)
    app.command(context_settings={"help_option_names": ["-h", "--help"]})(function)
    command = typer.main.get_command(app)
    try:
        with command.make_context(name, list(args)) as context:
            return command.invoke(context)
    except typer.Exit:
        return None
    except typer.TyperException as error:
        said = error.format_message().strip().rstrip(".")
        raise BadInput(f"{said}. {name} --help shows what it takes.") from None
