"""Run some steps of a plan on the local devices, and record them."""

from __future__ import annotations

import os
import queue
import tempfile
from collections.abc import Callable

import numpy as np

from shardwise.errors import BadInput, NoAnswer
from shardwise.plan.machine import system_of
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.json_io import AnyPlan
from shardwise.plan.schema.serving import ServingPlan
from shardwise.runtime.recording import start_recording, stop_recording
from shardwise.serve.request import FAILED, Engine, Generation, Sampling, Token
from shardwise.train.metrics import Hooks
from shardwise.train.random_tokens import write_random_tokens
from shardwise.train.run import train

CUDA_GRAPHS = "xla_gpu_enable_command_buffer"  # option: the kinds of operations in CUDA graphs
TRAIN_STEPS = 7  # of which the trainer records the last five
DECODE_PASSES = 8  # recorded after the last prompt
PROMPTS = 2  # recorded
PATIENCE_S = 600.0  # for one token


def record_plan(
    plan: AnyPlan, folder: str, *, data: str = "", on_stage: Callable[[str], None]
) -> None:
    """Run steps of a training plan, or passes of an engine with random weights, and record some.

    Args:
        folder: of the trace.
        data: folders of tokens to train on; empty for random tokens.
        on_stage: receives what is done now, "" at the end.

    Raises:
        BadInput: the plan does not run on the devices that are here.
        BadFile: the folder cannot be written.
    """
    if system_of(plan.hardware).chip.kind == "gpu":
        launch_each_kernel()
    if isinstance(plan, ServingPlan):
        _record_serving(plan, folder, on_stage)
        return
    hooks = Hooks(on_stage=on_stage)
    with tempfile.TemporaryDirectory() as temporary:
        if not data:
            data = temporary
            n_tokens = plan.workload.batch * plan.workload.seq + 1  # of one step
            write_random_tokens(temporary, n_tokens, plan.model.vocab)
        train(plan, data=data, steps=TRAIN_STEPS, profile=folder, hooks=hooks)


def launch_each_kernel() -> None:
    """Let XLA launch kernels one by one: those of CUDA graphs do not say which operation they are.

    This has no effect once JAX has started, nor where the user has set the option.
    """
    flags = os.environ.get("XLA_FLAGS", "")
    if CUDA_GRAPHS not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --{CUDA_GRAPHS}=".strip()


def _record_serving(plan: ServingPlan, folder: str, on_stage: Callable[[str], None]) -> None:
    """Fill the engine but for some places; record their prompts, and decode passes of all."""
    from shardwise.serve.engine_options import EngineOptions
    from shardwise.serve.launch import launched
    from shardwise.serve.model_files.random_weights import random_model

    context = plan.workload.context
    model = random_model(plan.model.name, model_of(plan.model.architecture), context)
    on_stage("compiling the programs")
    n_prompt = min(plan.workload.prompt or context // 2, context - 1)
    n_output = min(1 + DECODE_PASSES, context - n_prompt)
    if n_prompt < 1:
        raise BadInput(f"a context of {context} tokens has no room for a prompt and an output.")
    batch = max(1, plan.estimate.decode.batch)
    n_recorded = min(PROMPTS, batch)
    with launched(model, EngineOptions(), plan) as engine:
        on_stage("computing prompts")
        first = _Requests(engine, range(batch - n_recorded), n_prompt, context - n_prompt)
        first.wait(1)
        on_stage("recording")
        start_recording(folder, plan)
        last = _Requests(engine, range(batch - n_recorded, batch), n_prompt, n_output)
        last.wait(n_output)
        stop_recording()
        first.cancel()
    on_stage("")


class _Requests:
    """Requests of random prompts, all of one length, that an engine runs at the same time."""

    def __init__(self, engine: Engine, numbers: range, n_prompt: int, n_output: int) -> None:
        self._engine = engine
        self._tokens: dict[str, queue.SimpleQueue[Token]] = {}
        for index in numbers:
            prompt = np.random.default_rng(index).integers(256, size=n_prompt).tolist()
            tokens: queue.SimpleQueue[Token] = queue.SimpleQueue()
            self._tokens[str(index)] = tokens
            generation = Generation(
                id=str(index),
                prompt=tuple(prompt),
                max_tokens=n_output,
                sampling=Sampling(temperature=0.0),
            )
            engine.submit(generation, tokens.put)

    def wait(self, n_tokens: int) -> None:
        """Wait until each has this many tokens.

        Raises:
            NoAnswer: the engine has failed.
        """
        for tokens in self._tokens.values():
            for _ in range(n_tokens):
                if tokens.get(timeout=PATIENCE_S).finish == FAILED:
                    raise NoAnswer("the engine has failed; its log has the reason.")

    def cancel(self) -> None:
        for name in self._tokens:
            self._engine.cancel(name)
