"""Prefill and decode on meshes of different sizes: `python -m` prints outputs by case in JSON."""

from __future__ import annotations

import json
import sys

import jax
import numpy as np

from shardwise.models import ModelConfig
from shardwise.runtime.layout.mesh import role_mesh
from shardwise.runtime.layout.sharding import Table
from shardwise.runtime.serving.engine_state import EngineState
from shardwise.runtime.serving.forward import PagedForward
from shardwise.runtime.serving.kv_layout import kv_heads, split_tensor
from shardwise.serve.disaggregated import DisaggregatedEngine
from shardwise.serve.phases import DecodeEngine, PrefillEngine
from shardwise.serve.programs import Programs
from shardwise.simulate.limits import Limits
from shardwise.strategy.mesh import Mesh
from shardwise.strategy.serving_layout import ServeLayout, serve_rules
from shardwise.workload import Serve
from tests.unit.serve.engines import BLOCKS, CONTEXT, FP32, Greedy, generate, random_weights
from tests.unit.serve.test_engine import prompts, requests

MODEL = ModelConfig.dense(n_layers=2, d_model=32, d_ff=64, n_heads=4, n_kv_heads=2, vocab=100)
# case -> (tensor, split of the KV cache, tokens of a block) of prefill and decode, dtype of the KV
CASES = {
    "2 to 4, sequence": ((2, "sequence", 4), (4, "sequence", 4), "fp32"),
    "4 to 1": ((4, "copied", 4), (1, "sequence", 4), "fp32"),
    "1 to 4, other blocks": ((1, "sequence", 4), (4, "sequence", 8), "fp32"),
    "2 to 4, int8": ((2, "sequence", 4), (4, "sequence", 4), "int8"),
}
N, TOKENS = 5, 12


def programs(layout: tuple[int, str, int], kv: str, devices: list[jax.Device]) -> Programs:
    """Programs of the model on the first of some devices."""
    n, split, block_tokens = layout
    serve_layout = ServeLayout(mesh=Mesh(tensor=n), kv=split)
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
    return Limits(
        n_blocks=BLOCKS,
        block_tokens=compiled.forward.block_tokens,
        max_sequences=4,
        max_tokens=16,
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


if __name__ == "__main__":
    plain = Greedy(MODEL)
    texts = [plain.continuation(prompt, TOKENS) for prompt in prompts(N)]
    print(json.dumps({"plain": texts, **{case: outputs(case) for case in sys.argv[1:]}}))
