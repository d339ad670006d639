"""`shardwise ui [PLAN.json | MODEL HARDWARE ...]`: the page with sliders, on this machine."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import shardwise as sw
from shardwise import units
from shardwise.cli import options
from shardwise.cli.answer import json_text
from shardwise.cli.explanation import read_model
from shardwise.cli.inputs import Inputs, load_plan
from shardwise.cli.options import argument, output
from shardwise.cli.progress import progress
from shardwise.cli.streams import write_answer
from shardwise.cli.verbs.serving.workload import parse_rate
from shardwise.cli.verbs.training.workload import read_job
from shardwise.errors import BadInput, MissingExtra

PORT = 8710


def run(
    plan: Annotated[str, argument("[PLAN.json|MODEL]", "a saved plan, or a model")] = "",
    hardware: options.MachineOfModel = "",
    serve: options.Serving = False,
    batch: Annotated[
        str, options.workload("--batch N[xT]", "training: sequences x tokens; serving: sequences")
    ] = "",
    tokens: options.TrainingTokens = "",
    prompt: options.PromptLength = "",
    output_length: options.OutputLength = "",
    rate: options.RequestRate = "",
    tpot: options.TpotBound = "",
    ttft: options.TtftBound = "",
    dtype: Annotated[
        str, options.workload("--dtype DTYPE", "of matmuls, or of served weights: bf16")
    ] = "bf16",
    peak: options.PeakRates = False,
    run_folder: Annotated[
        str, output("--run DIR", "also show a training run, live: its folder or metrics.jsonl")
    ] = "",
    port: Annotated[int, output("--port N", "0: any that is free")] = PORT,
    json: options.Json = False,
) -> None:
    """A page with sliders for every choice of a plan: what it takes, why, and what each chip
    holds. Without arguments it opens with LLaMA-3-70B on a TPU v5p pod. It is served on this
    machine alone, until Ctrl-C. --json: a line on stdout when it is ready."""
    _require_server()
    from shardwise.ui.app import App, Opened
    from shardwise.ui.live import find_metrics
    from shardwise.ui.server import serve as serve_page

    inputs = Inputs()
    opened: dict[str, Any] = {}
    if run_folder:
        opened["run"] = inputs.read(find_metrics, run_folder)
    if not 0 <= port < 1 << 16:
        inputs.refuse(f"--port {port} is not between 0 and {(1 << 16) - 1:,}.")
    if hardware:
        settings = {"batch": batch, "tokens": tokens, "prompt": prompt, "output": output_length}
        settings |= {"rate": rate, "tpot": tpot, "ttft": ttft, "dtype": dtype}
        question = _served if serve else _trained
        fields = inputs.read(question, settings)
        local = inputs.read(_named, plan, hardware)
        inputs.done()
        names = {"model": next(iter(local.models)), "hardware": next(iter(local.systems))}
        opened |= {"local": local, "question": _question(**names, **fields, peak=peak)}
    elif plan:
        saved = inputs.read(load_plan, plan)
        inputs.done()
        opened |= _opened_with(saved)
    inputs.done()
    app = App(Opened(**opened))

    def started(url: str) -> None:
        if json:
            write_answer(json_text({"url": url}, sys.stdout))
        else:
            sys.stderr.write(f"the page is at {url}  (Ctrl-C ends it)\n")
            sys.stderr.flush()

    with progress("making the first view", quiet=True):
        serve_page(app, port, started)


def _require_server() -> None:
    """Refuse to start without the packages of the server.

    Raises:
        MissingExtra: they are not installed.
    """
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ModuleNotFoundError:
        raise MissingExtra(
            "the page's server is missing: pip install 'shardwise[ui]'. Without it, shardwise "
            "report plan.json -o report.html writes the page into a file."
        ) from None


def _named(model: str, hardware: str) -> Any:
    """The model and the machine under the names that the page uses for them."""
    from shardwise.ui.question import LocalNames

    inputs = Inputs()
    config = inputs.read(read_model, model)
    system = inputs.read(sw.hardware, hardware)
    inputs.done()
    name = model if config.name == Path(model).name else config.name
    return LocalNames(models={name: config}, systems={system.name: system})


def _opened_with(saved: Any) -> dict[str, Any]:
    from shardwise.ui.frame import frame_of_plan

    frame, question, local = frame_of_plan(saved)
    return {"frame": frame, "question": question, "local": local}


def _question(**fields: Any) -> Any:
    from shardwise.ui.question import Question

    return Question(**fields)


def _trained(settings: dict[str, str]) -> dict[str, Any]:
    """Fields of a question about training.

    Raises:
        BadInput: with every word that is wrong.
    """
    of_serving = [
        f"--{name}" for name in ("prompt", "output", "rate", "tpot", "ttft") if settings[name]
    ]
    if of_serving:
        raise BadInput(f"{', '.join(of_serving)}: for serving. Add --serve.")
    job = read_job(settings["batch"], settings["tokens"], settings["dtype"])
    return {"batch": job.batch, "seq": job.seq, "tokens": job.tokens, "dtype": job.compute}


def _served(settings: dict[str, str]) -> dict[str, Any]:
    """Fields of a question about serving.

    Raises:
        BadInput: with every word that is wrong.
    """
    inputs = Inputs()
    if settings["tokens"]:
        inputs.refuse("--tokens is for training.")
    fields: dict[str, Any] = {"kind": "serve", "dtype": settings["dtype"]}
    inputs.read(units.bytes_per_element, settings["dtype"])
    for name in ("prompt", "output"):
        if settings[name]:
            fields[name] = inputs.read(units.parse_length, settings[name], f"--{name}")
    if settings["batch"]:
        fields["batch"] = inputs.read(units.parse_whole, settings["batch"], "--batch")
    if settings["rate"]:
        fields["rate"] = inputs.read(parse_rate, settings["rate"])
    for name in ("tpot", "ttft"):
        if settings[name]:
            fields[f"{name}_s"] = inputs.read(units.parse_seconds, settings[name], f"--{name}")
    inputs.done()
    return fields
