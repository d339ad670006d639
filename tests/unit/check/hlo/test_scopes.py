"""Names of planned operations, and the pass of training."""

from __future__ import annotations

import pytest

from shardwise.check.hlo.scopes import scope

STEP = "jit(step)/shard_map/"
BACK = f"{STEP}transpose(jvp())/while/body/closed_call/checkpoint/"


@pytest.mark.parametrize(
    ("op_name", "expected"),
    [
        (f"{STEP}jvp()/while/body/closed_call/attn.q/dot_general", ("attn.q", "forward")),
        (f"{STEP}jvp(unembed)/all_gather", ("unembed", "forward")),
        (f"{STEP}transpose(jvp(unembed))/dot_general", ("unembed", "backward")),
        (f"{BACK}mlp.up/dot_general", ("mlp.up", "backward")),
        (f"{BACK}rematted_computation/mlp.up/dot_general", ("mlp.up", "remat")),
        (f"{BACK}add", ("", "backward")),
        (f"{STEP}optimizer/mul", ("optimizer", "update")),
        (
            "jit(decode)/while/body/attn.scores/BSNH,BTNH->BNST/dot_general",
            ("attn.scores", "forward"),
        ),
        (f"{STEP}jvp()/moe.up/mlp.down/x", ("mlp.down", "forward")),
        (f"{STEP}jvp()/(attn.q/all_gather:mlp.up/all_gather)", ("attn.q+mlp.up", "forward")),
        (f"{BACK}(rematted_computation/all_gather:all_gather)", ("", "backward")),
        (f"{BACK}rematted_computation/(attn.q/x:mlp.up/x)", ("attn.q+mlp.up", "remat")),
        ("", ("", "forward")),
        ("my.attn.quite/other", ("", "forward")),
    ],
)
def test_the_innermost_known_name_and_the_pass(op_name, expected):
    assert scope(op_name) == expected
