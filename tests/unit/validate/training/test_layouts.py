"""What sources leave open of a layout, and what is taken for it."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shardwise.validate import Run, read
from tests.unit.validate.record import moe, record

OTHER = {"repo": "NVIDIA/Megatron-LM"}
NEMO_DEFAULTS = ("grad_reduce", "param_gather", "tp_comm", "pipe_p2p")


def run_of(data: dict[str, Any]) -> Run:
    found = read(data)
    assert isinstance(found, Run), found
    return found


@pytest.mark.parametrize(
    ("changes", "dispatcher"),
    [
        ({"overlap": {"kernels": "TE + DeepEP + FlexAttn"}}, "deepep"),
        ({"overlap": {"moe_dispatcher": "HybridEP"}}, "hybridep"),
        ({"overlap": {"moe_dispatcher": "deepep", "kernels": "TE"}}, "deepep"),
        ({"overlap": {"kernels": "TE"}, "source": OTHER}, ""),
        ({"overlap": {}, "source": OTHER}, ""),
        # What NVIDIA's recipes and DeepSeek's framework do where the row does not say.
        ({"overlap": {}}, "deepep"),
        ({"overlap": {"moe_dispatcher": "alltoall"}}, "alltoall"),
        ({"overlap": {}, "hardware__family": "H200"}, ""),
        ({"overlap": {}, "source": {"paper": "DeepSeek-V3 Technical Report"}}, "deepep"),
    ],
)
def test_what_sends_tokens_to_experts(changes: dict[str, Any], dispatcher: str) -> None:
    assert run_of(moe(**changes)).dispatcher == dispatcher


@pytest.mark.parametrize(("dp", "degree"), [(8, 8), (32, 16), (12, 4)])
def test_a_dispatcher_means_experts_on_other_ranks(dp: int, degree: int) -> None:
    """16 experts: as many ranks as hold whole numbers of them, and the row says so."""
    par = {"dp": dp, "fsdp": dp, "zero_stage": 3, "tp": 1, "cp": 1, "pp": 1}
    hardware = {"family": "H100", "count": dp, "chips_per_node": 4}
    row = moe(
        parallelism=par,
        hardware=hardware,
        global_batch_seqs=2 * dp,
        overlap={"kernels": "DeepEP"},
    )
    run = run_of(row)
    assert run.layout.expert_degree == degree == math.gcd(16, dp)
    assert run.layout.mesh.fsdp == dp // degree
    assert run.assumed["expert"] == f"{degree}, not stated"


def test_a_stated_degree_is_not_inferred() -> None:
    par = {"dp": 16, "ep": 2, "tp": 1, "cp": 1, "pp": 1}
    run = run_of(moe(parallelism=par, overlap={"kernels": "DeepEP"}))
    assert run.layout.expert_degree == 2
    assert "expert" not in run.assumed


def test_without_a_dispatcher_experts_stay_and_the_row_says_so() -> None:
    run = run_of(moe(source=OTHER, parallelism={"dp": 16, "tp": 1, "cp": 1, "pp": 1}))
    assert run.layout.expert_degree == 1
    assert run.assumed["expert"] == "1, not stated"


def test_jax_and_dense_models_have_no_degree_to_assume() -> None:
    tpu = {"family": "v5e", "count": 16, "topology": "4x4"}
    par = {"fsdp": 16, "zero_stage": 3}
    jax = run_of(moe(hardware=tpu, parallelism=par, overlap={}))
    assert (jax.layout.expert_degree, "expert" in jax.assumed) == (1, False)
    dense = run_of(record(overlap={"kernels": "DeepEP"}))
    assert (dense.layout.expert_degree, "expert" in dense.assumed) == (1, False)


def test_carried_rows_without_a_degree(runs: dict[str, Run]) -> None:
    inferred = {"automodel-gpt-oss-20b-h100-8": 8, "automodel-gpt-oss-120b-h100-64": 64}
    for name, degree in inferred.items():
        assert runs[name].layout.expert_degree == degree
        assert runs[name].assumed["expert"] == f"{degree}, not stated"


@pytest.mark.parametrize(
    ("changes", "overlap"),
    [
        ({}, NEMO_DEFAULTS),
        ({"source": {"repo": "mlcommons/training_results_v5.1"}}, NEMO_DEFAULTS),
        ({"source": {"repo": "NVIDIA/Megatron-LM"}}, ()),
        ({"source": {"repo": "NVIDIA-NeMo/Automodel"}}, ()),
        ({"overlap": {"tp_overlap_default": False}}, ("grad_reduce", "param_gather", "pipe_p2p")),
        ({"overlap": {"overlap_grad_reduce": False, "overlap_param_gather": False}},
         ("tp_comm", "pipe_p2p")),
        ({"parallelism__zero_stage": 0}, ("tp_comm", "pipe_p2p")),
        ({"parallelism__sp": False}, ("grad_reduce", "param_gather", "pipe_p2p")),
        ({"parallelism__vpp": 1}, ("grad_reduce", "param_gather", "tp_comm")),
        ({"parallelism": {"dp": 16, "zero_stage": 1, "tp": 1, "cp": 1, "pp": 1}},
         ("grad_reduce", "param_gather")),
    ],
)  # fmt: skip
def test_what_nemo_hides_by_default(changes: dict[str, Any], overlap: tuple[str, ...]) -> None:
    """The row's own words win, and what a layout does not have is not hidden."""
    assert run_of(record(**{"overlap": {}, **changes})).layout.overlap == overlap


def test_what_a_row_states_comes_before_what_is_usual() -> None:
    run = run_of(record(overlap={"moe_a2a_overlap": True, "p2p_overlap": True}))
    assert set(run.layout.overlap) == {*NEMO_DEFAULTS, "expert_all_to_all"}
    assert len(run.layout.overlap) == len(set(run.layout.overlap))
