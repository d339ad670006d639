"""The command line: `shardwise VERB ...`. Each verb is a file that parses, calls the API, reports.

Only the module of the verb is imported, so that `--help` and small answers are fast. Answers go to
stdout, everything else to stderr. Exit codes: 0 for an answer, 1 for a bug, 2 for bad input, 3 if
nothing satisfies the request, 4 if a check failed, 5 if it has no answer. Level 13.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from shardwise.cli.streams import replace_closed, write_answer
from shardwise.errors import IgnoredKey, ShardwiseError, UnknownName

if TYPE_CHECKING:
    from shardwise.cli.answer import Answer

VERBS = {
    "plan": "how to split training or serving over a machine, with time, memory, cost and reasons",
    "fit": "the smallest machine that holds a model, and what is left on it",
    "explain": "what binds a plan, its runner-up, what would change it, and the way that led to it",
    "sweep": "the best plan for every combination of options, as a table",
    "export": "a plan as the launch configuration of MaxText, Megatron, vLLM and others",
    "import": "a plan of what already runs, from such a configuration",
    "check": "XLA's own compiler on a plan: memory, FLOPs, collectives, time; no TPU is needed",
    "hlo": "an operation of a compiled program explained: layout, mesh axes, einsum, time",
    "train": "a plan run in JAX on the devices that are there, planned beside measured step time",
    "serve": "a model over HTTP by the OpenAI API, under a plan, with a chat page",
    "generate": "one prompt continued by a model on the devices that are there",
    "bench": "latency and throughput of a server under load, planned beside measured",
    "profile": "where the time of a step went, from a trace of any JAX program",
    "compare": "planned, compiled and measured side by side, with the cause of each gap",
    "ui": "a page with sliders for every choice of a plan, served on this machine",
    "report": "a plan, comparison or run as one file that a browser opens from disk",
    "data": "text into tokens for training",
    "roofline": "what bounds one operation on a chip, and from which size it is compute-bound",
    "shard": "a sharded matmul: its collectives with bytes and times, and the other ways",
    "collective": "the time of one collective on a machine's links, level by level",
    "ideal": "what rooflines alone allow: smallest machine, largest batch, days of training",
    "thresholds": "from which sizes on a model is compute-bound on a chip, by each network",
    "hw": "chips, slices and systems, every figure with its source",
    "models": "models, their parameters, FLOPs and cache bytes by part",
    "book": 'the worked problems of "How to Scale Your Model", solved by this package',
    "validate": "published runs predicted by these formulas, and how far they are off",
    "demo": "plan, prove, measure, train, profile, compare, serve: all of it, in minutes",
}

_HELP = """\
usage: shardwise VERB ...

Plan how a large Transformer is split over chips, and know why.

{verbs}

shardwise VERB --help  shows its options. Every verb takes --json.

  shardwise plan llama3-70b v5p:16x20x28 --train --batch 1120x4096 --tokens 15T
  shardwise plan llama3-70b h200 --serve --prompt 2048 --output 512 --rate 20/s
  shardwise fit llama3-70b v5e --serve --dtype bf16,int8,int4 --context 8192
"""

TWO_FORM_VERBS = ("plan", "explain", "sweep")  # one module for training, one for serving

_INTERRUPTED = 130  # exit code after Ctrl-C, as shells report it: 128 + SIGINT


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code. Errors never show a traceback."""
    if argv is None:
        argv = sys.argv[1:]
    args = list(argv)
    try:
        replace_closed()
        with warnings.catch_warnings():
            warnings.simplefilter("always", IgnoredKey)
            warnings.showwarning = _note_or_warn(warnings.showwarning)
            return _run(args)
    except ShardwiseError as error:
        from shardwise.cli.failure import report

        return report(error, as_json="--json" in args)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except Exception as error:
        from shardwise.cli.failure import name_too_long, report, report_bug

        if problem := name_too_long(error):
            return report(problem, as_json="--json" in args)
        return report_bug(error, args)


def _note_or_warn(warn: Callable[..., None]) -> Callable[..., None]:
    """A `warnings.showwarning` that shows an `IgnoredKey` as a note, and others by `warn`."""

    def show(message: Warning | str, category: type[Warning], *args: Any, **kwargs: Any) -> None:
        if not issubclass(category, IgnoredKey):
            warn(message, category, *args, **kwargs)
            return
        from shardwise.cli.failure import note

        note(str(message))

    return show


def _run(args: list[str]) -> int:
    if args[:1] == ["help"] and len(args) > 1:
        args = [*args[1:], "--help"]
    if not args or args[0] in ("-h", "--help", "help"):
        write_answer(help_text())
        return 0
    if args[0] in ("-V", "--version"):
        from shardwise import __version__

        write_answer(f"shardwise {__version__}\n")
        return 0
    verb, *options = args
    if verb not in VERBS:
        raise UnknownName("verb", verb, VERBS, "shardwise --help lists them.")
    from shardwise.cli.command import call

    name, module = locate(verb, options)
    answer: Answer | None = call(f"shardwise {name}", importlib.import_module(module).run, options)
    if answer is None:  # --help of the verb
        return 0
    write_answer(answer.text(sys.stdout))
    return answer.exit_code


def locate(verb: str, args: Sequence[str]) -> tuple[str, str]:
    """The name of a verb in its help, and its module: that of serving if `args` has --serve."""
    if verb not in TWO_FORM_VERBS:
        return verb, f"shardwise.cli.verbs.{verb}"
    if "--serve" in args and "--train" not in args:
        return f"{verb} --serve", f"shardwise.cli.verbs.serving.{verb}"
    return verb, f"shardwise.cli.verbs.training.{verb}"


def help_text() -> str:
    """The text of `shardwise --help`."""
    import textwrap

    lines = [
        textwrap.fill(text, 78, initial_indent=f"  {verb:<12}", subsequent_indent=" " * 14)
        for verb, text in VERBS.items()
    ]
    return _HELP.format(verbs="\n".join(lines))
