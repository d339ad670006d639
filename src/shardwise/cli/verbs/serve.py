"""`shardwise serve MODEL|PLAN.json`: serve a model by the OpenAI API."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated

import shardwise as sw
from shardwise import units
from shardwise.cli import options, serving_model
from shardwise.cli.answer import Answer, json_text
from shardwise.cli.inputs import Inputs
from shardwise.cli.options import option
from shardwise.cli.serving_model import EngineWords, read_engine_options, read_model
from shardwise.cli.streams import reserve_stdout, write_answer
from shardwise.cli.verbs.profile import short_account
from shardwise.errors import BadInput
from shardwise.report.style import render, showable
from shardwise.runtime.devices import require_jax
from shardwise.runtime.processes.rendezvous import Rendezvous, is_first, join
from shardwise.runtime.recording import Recorder
from shardwise.serve.http.options import KEYS_VARIABLE, ServerOptions, read_api_keys
from shardwise.serve.launch import INSTALL_COMMAND
from shardwise.train.writable import ensure_writable

DEFAULT = ServerOptions()
RESTART = "Start all of them again."

PASSES_BEFORE, PASSES_RECORDED = 8, 32  # of a trace

server_option = partial(option, "Server")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """What a server says when it takes requests.

    Args:
        weights: dtype of the weights, as `plan --serve` takes it.
        kv: dtype of the KV cache.
    """

    url: str
    model: str
    ready_s: float
    max_context: int
    weights: str
    kv: str


def run(
    model: serving_model.ModelOrPlan,
    start: serving_model.WeightsFrom = "",
    context: serving_model.Context = "",
    sequences: serving_model.Sequences = "",
    chunk: serving_model.PassTokens = "",
    dtype: serving_model.WeightsDtype = "",
    kv_dtype: serving_model.KvDtype = "",
    host_cache: serving_model.HostCache = "",
    draft: serving_model.Draft = "",
    drafted: serving_model.Drafted = "",
    host: Annotated[str, server_option("--host ADDRESS", "where to listen")] = DEFAULT.host,
    port: Annotated[int, server_option("--port N", "0: any that is free")] = DEFAULT.port,
    keys: Annotated[
        str,
        server_option(
            "--api-keys FILE", f"keys of clients, one a line  [default: ${KEYS_VARIABLE}, or none]"
        ),
    ] = "",
    queue: Annotated[
        str,
        server_option(
            "--queue N", f"requests that may wait for a place  [default: {DEFAULT.most_waiting}]"
        ),
    ] = "",
    prefill: Annotated[
        bool, server_option("--prefill", "compute prompts for servers with --prefill-from")
    ] = False,
    prefill_from: Annotated[
        str, server_option("--prefill-from URL", "have prompts computed by a server with --prefill")
    ] = "",
    profile: options.ProfileFolder = "",
    coordinator: options.Coordinator = "",
    processes: options.Processes = None,
    process: options.Process = None,
    json: options.Json = False,
) -> Answer | None:
    """Serve a model over HTTP by the OpenAI API, with a chat page, until Ctrl-C or SIGTERM.
    A plan says how it is split over the devices. --json: a line on stdout when it is ready."""
    inputs = Inputs()
    words = EngineWords(
        context=context,
        sequences=sequences,
        chunk=chunk,
        weights=dtype,
        kv=kv_dtype,
        host_cache=host_cache,
        draft=draft,
        drafted=drafted,
    )
    engine_options = inputs.read(read_engine_options, words)
    served = inputs.read(read_model, model, start)
    most_waiting = inputs.optional(units.parse_whole, queue, "--queue")
    key_file = Path(keys) if keys else None
    api_keys = inputs.read(read_api_keys, key_file, os.environ)
    inputs.read(_check_port, port)
    if profile:
        inputs.read(ensure_writable, Path(profile), "the trace")
    rendezvous = inputs.read(
        Rendezvous, coordinator=coordinator, processes=processes, process=process
    )
    if prefill and (prefill_from or draft):
        other = "--prefill-from" if prefill_from else "--draft"
        inputs.refuse(f"{other} is for servers that generate, and not for --prefill.")
    inputs.done()
    from shardwise.serve.http.run import ensure_listens, serve
    from shardwise.serve.remote_prefill import PrefillServer
    from shardwise.serve.texts_of_model import ModelGrammar, texts_of_model

    found, plan = served
    require_jax("serving", INSTALL_COMMAND)
    if coordinator:
        reserve_stdout()
    join(rendezvous, lambda note: _say(f"{note}\n"), RESTART)
    if not is_first():
        serving_model.follow(found, engine_options, plan)
        return None
    server = ServerOptions(
        host=host,
        port=port,
        api_keys=api_keys,
        most_waiting=most_waiting or DEFAULT.most_waiting,
    )
    ensure_listens(server)
    if not json:
        _say(f"loading {found.name} and compiling its programs ...\n")
    texts = texts_of_model(found)
    engine_options = replace(engine_options, prefill=prefill)
    if prefill_from:
        key = min(api_keys, default="")
        remote = PrefillServer(url=prefill_from, model=texts.model, key=key)
        engine_options = replace(engine_options, prefill_from=remote)
    start_s = time.monotonic()

    def started(host: str, port: int) -> None:
        ready = Ready(
            url=f"http://{host}:{port}/v1",
            model=texts.model,
            ready_s=time.monotonic() - start_s,
            max_context=engine.max_context,
            weights=engine.weights_dtype,
            kv=engine.kv_dtype,
        )
        if json:
            write_answer(json_text(ready, sys.stdout))
        else:
            _say(f"ready in {ready.ready_s:.0f} s: {ready.url}, a chat page at /\n")
            limit = "" if context or plan is None else ", the context of the plan"
            _say(f"a prompt and its output have at most {ready.max_context:,} tokens{limit}\n")
            _say(f"weights in {ready.weights}, KV cache in {ready.kv}\n")

    recorder = Recorder(
        profile,
        plan,
        first=PASSES_BEFORE,
        steps=PASSES_RECORDED,
        on_done=lambda: _say(f"recorded: shardwise profile {profile}\n"),
    )
    with serving_model.running_engine(
        found, engine_options, plan, quiet=json, recorder=recorder
    ) as engine:
        serve(
            engine,
            texts,
            server,
            grammar=ModelGrammar(found, texts.stop_tokens),
            started=started,
            version=sw.__version__,
            prefill=engine if prefill else None,  # type: ignore[arg-type]
        )
    if recorder.has_recorded:
        _say(render(short_account(profile), sys.stderr))
    return None


def _check_port(port: int) -> None:
    if not 0 <= port < 1 << 16:
        raise BadInput(f"--port {port} is not between 0 and {(1 << 16) - 1:,}.")


def _say(text: str) -> None:
    sys.stderr.write(showable(text, sys.stderr))
    sys.stderr.flush()
