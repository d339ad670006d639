"""Prefill and decode on different meshes: `python -m` prints the outputs of each case in JSON."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

import shardwise as sw
from shardwise.errors import BadInput
from shardwise.models import ModelConfig
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
from shardwise.serve.disaggregated import DisaggregatedEngine
from shardwise.serve.engine_options import EngineOptions
from shardwise.serve.launch import launched
from shardwise.serve.model_files import find_model
from shardwise.serve.phases import DecodeEngine, PrefillEngine
from shardwise.serve.programs import Programs
from shardwise.simulate.limits import Limits
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout, serve_rules
from shardwise.workload import Serve
from tests.host import host
from tests.unit.serve.engines import BLOCKS, CONTEXT, FP32, Greedy, generate, random_weights
from tests.unit.serve.model_files.tiny import write_folder
from tests.unit.serve.test_engine import prompts, requests

MODEL = ModelConfig.dense(n_layers=2, d_model=32, d_ff=64, n_heads=4, n_kv_heads=2, vocab=100)
# case -> (mesh, split of the KV cache, tokens of a block) of prefill and decode, dtype of the KV
CASES = {
    "2 to 4, sequence": ((Mesh(tensor=2), "sequence", 4), (Mesh(tensor=4), "sequence", 4), "fp32"),
    "4 to 1": ((Mesh(tensor=4), "copied", 4), (Mesh(), "sequence", 4), "fp32"),
    "1 to 4, other blocks": ((Mesh(), "sequence", 4), (Mesh(tensor=4), "sequence", 8), "fp32"),
    "2 to 4, int8": ((Mesh(tensor=2), "sequence", 4), (Mesh(tensor=4), "sequence", 4), "int8"),
    "pools to pools": (
        (Mesh(fsdp=2, tensor=2), "copied", 4),
        (Mesh(fsdp=4), "copied", 4),
        "fp32",
    ),
    "context to stages": (
        (Mesh(context=2, tensor=2), "copied", 4),
        (Mesh(pipe=2), "copied", 4),
        "int8",
    ),
}
PLAN, EXPERTS = "a plan", "a plan with experts"
FIXED = {PLAN: {"fsdp": 1, "tensor": 2}, EXPERTS: {"expert": 2, "tensor": 1}}
MIXTRAL = {"model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
N, TOKENS = 5, 12


def programs(layout: tuple[Mesh, str, int], kv: str, devices: list[jax.Device]) -> Programs:
    """Programs of the model on the first of some devices; `fsdp` makes pools."""
    sizes, split, block_tokens = layout
    n = sizes.n_chips
    weights = "gathered" if sizes.fsdp > 1 else "stationary"
    serve_layout = ServeLayout(mesh=sizes, kv=split, weights=weights)
    mesh = split_tensor(role_mesh(serve_layout.sizes, np.array(devices[:n])), kv_heads(MODEL))
    state = EngineState(
        config=MODEL,
        job=Serve(context=CONTEXT, **(FP32 | {"kv": kv})),
        layout=serve_layout,
        table=Table(rules=serve_rules(serve_layout), mesh=mesh),
        batch=1,
    )
    shardings = jax.tree.map(lambda x: x.sharding, state.weight_shapes())
    return Programs(
        forward=PagedForward(
            engine=state, n_blocks=BLOCKS, block_tokens=block_tokens, by_layer=n == 1
        ),
        weights=jax.device_put(random_weights(model=MODEL), shardings),
        max_sequences=4,
        max_tokens=16,
        max_context=CONTEXT,
    )


def limits(compiled: Programs) -> Limits:
    n_pools = compiled.n_pools
    return Limits(
        n_blocks=BLOCKS * n_pools,
        block_tokens=compiled.forward.block_tokens,
        max_sequences=4 * n_pools,
        max_tokens=16 * n_pools,
    )


def outputs(case: str) -> dict[str, object]:
    """Outputs of two engines, and of one with the layout of prefill."""
    first, second, kv = CASES[case]
    devices = jax.devices()
    prefill = programs(first, kv, devices)
    decode = programs(second, kv, devices[4:])
    whole = PrefillEngine(prefill, limits(prefill))
    together = [output.ids for output in generate(whole, requests(N, max_tokens=TOKENS))]
    whole.close()
    engine = DisaggregatedEngine(
        [PrefillEngine(prefill, limits(prefill))], [DecodeEngine(decode, limits(decode))]
    )
    apart = [output.ids for output in generate(engine, requests(N, max_tokens=TOKENS))]
    stats = engine.stats()
    engine.close()
    return {"together": together, "apart": apart, "blocks_used": stats.blocks_used}


def planned(name: str, folder: Path) -> dict[str, object]:
    """Outputs of a launched plan, and of a single engine; what is said of a plan without room."""
    system = host(folder, 8)
    model = find_model(str(write_folder(folder / "tiny", **(MIXTRAL if name == EXPERTS else {}))))
    config, job = sw.model(str(model.source)), sw.Serve(prompt=32, output=16, batch=4, **FP32)
    plan = sw.plan(config, system, job, FIXED[name], disaggregate=True)
    assert isinstance(plan, sw.ServingPlan)
    assert plan.strategy.prefill
    assert plan.strategy.prefill.mesh.get("expert", 1) == FIXED[name].get("expert", 1)
    prefill = replace(plan.strategy.prefill, count=4)
    too_many = replace(plan, strategy=replace(plan.strategy, prefill=prefill))
    options = EngineOptions(context=CONTEXT, sequences=2, pass_tokens=16, weights="fp32", kv="fp32")
    texts = []
    for engine_plan in (plan, None):
        with launched(model, options, engine_plan) as engine:
            texts.append([output.ids for output in generate(engine, requests(N))])
            kind = type(engine).__name__
            if engine_plan:
                n_blocks = engine.stats().blocks_used
                assert kind == "DisaggregatedEngine"
    refusal = ""
    try:
        with launched(model, options, too_many):
            pass
    except BadInput as error:
        refusal = str(error)
    return {
        "together": texts[1],
        "apart": texts[0],
        "blocks_used": n_blocks,
        "refusal": refusal,
    }


if __name__ == "__main__":
    plain = Greedy(MODEL)
    texts = [plain.continuation(prompt, TOKENS) for prompt in prompts(N)]
    answers: dict[str, object] = {case: outputs(case) for case in CASES}
    for name in FIXED:
        with tempfile.TemporaryDirectory() as folder:
            answers[name] = planned(name, Path(folder))
    print(json.dumps({"plain": texts, **answers}))
