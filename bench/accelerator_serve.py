"""Stage `serve` of `bench/accelerator.py`: the engine that `shardwise serve` starts, under load.

The model of `train-8b` with random weights in bf16. Requests of one length arrive together; all
continue to the same length. Their tokens have to be those of a request that runs alone as far as
rounding lets them be: with random weights the highest logit is often close to the next.
"""

from __future__ import annotations

import time
from typing import Any

from accelerator_decode import fitting_layers
from accelerator_device import Device, Found, report
from accelerator_train import model_of, size_of
from serve_ours import Side

import shardwise as sw
from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.launch import launched
from shardwise.serve.model_files.random_weights import random_model

LOADS = {  # sequences, tokens of a prompt, of an output; tiny or not
    False: ((1, 512, 128), (16, 512, 128), (64, 512, 128)),
    True: ((1, 16, 8), (2, 16, 8)),
}
CONTEXT = {False: 1024, True: 64}


def serve(device: Device) -> Found:
    """Tokens a second of each load, beside the plan's decode steps."""
    size = size_of("8b", device)
    config = model_of(size, fitting_layers(size, device))
    loads = LOADS[device.tiny]
    context = CONTEXT[device.tiny]
    options = EngineOptions(
        context=context, sequences=max(n for n, *_ in loads), weights="bf16", kv="bf16"
    )
    start = time.perf_counter()
    with launched(random_model(config.name, config, context), options) as engine:
        ready_s = time.perf_counter() - start
        side = Side.of(engine)
        found: Found = {"model": config.name, "ready_s": ready_s, "rows": []}
        report(found, f"serve: ready after {ready_s:.0f} s")
        for load in loads:
            found["rows"].append(row(side, config, load, device))
            report(found, f"serve: {load[0]} requests")
    return found


def row(side: Side, config: sw.ModelConfig, load: tuple[int, int, int], device: Device) -> Found:
    """One load; prompts differ, so that none is in the prefix cache."""
    n, prompt, output = load
    prompts = [[(7 * i + j * (i + 3) + n) % 250 for j in range(prompt)] for i in range(n)]
    generated = side.generate(prompts, output)
    alone = side.generate(prompts[-1:], output)
    found: Found = {
        "sequences": n,
        "prompt": prompt,
        "output": output,
        "first_s": generated.first_s,
        "decode_tokens_per_s": generated.decoded / generated.decode_s,
        "step_s": n * generated.decode_s / generated.decoded,
        "same_as_alone": agreeing(generated.tokens[-1], alone.tokens[0]) / output,
    }
    if device.platform != "cpu" and device.in_catalog:
        job = sw.Serve(prompt=prompt, output=output, batch=n, weights="bf16", kv="bf16")
        plan: Any = sw.plan(config, device.machine(measured=False), job)
        found |= {"planned_s": plan.estimate.decode.step_s.expected}
    return found


def agreeing(one: list[int], other: list[int]) -> int:
    """Number of first tokens that are the same."""
    pairs = zip(one, other, strict=True)
    return next((i for i, (a, b) in enumerate(pairs) if a != b), len(one))
