"""Rows checked by hand against what their sources print."""

from __future__ import annotations

import pytest

from shardwise import units
from shardwise.hardware import Switched, Torus
from shardwise.models.config import Moe
from shardwise.strategy.mesh import Mesh
from shardwise.validate import Run, read
from tests.unit.validate.record import record

# id: (chips, batch, sequence length), mesh, (zero, microbatch, microbatches, schedule, virtual),
# remat, seconds per step.
ROWS = {
    "mb-26.08-deepseek-v3-gb300-mxfp8-256": (
        (256, 4096, 4096), Mesh(data=4, expert=32, pipe=2), (1, 1, 32, "interleaved", 8),
        "none", 4096 * 4096 / 6288 / 256,
    ),
    "mb-25.11-qwen3-235b-a22b-h100-fp8-current-256": (
        (256, 2048, 4096), Mesh(tensor=2, expert=16, pipe=8), (1, 1, 128, "interleaved", 4),
        "none", 20.80508,
    ),
    "dgxc-24.11.1-grok-1-2-layer-proxy-h100-8-bf16": (
        (8, 1024, 4096), Mesh(tensor=4, expert=2), (1, 1, 512, "none", 1), "none", 24.03,
    ),
    "dgxc-25.02-llama-3.x-70b-h100-1024-fp8-maxtext": (
        (1024, 2048, 8192), Mesh(data=8, fsdp=128), (3, 2, 1, "none", 1), "selective", 9.483,
    ),
    "mpt-30b-h100-512-s2048-b4096": (
        (512, 4096, 2048), Mesh(fsdp=512), (3, 8, 1, "none", 1), "full", 7.74657,
    ),
    "bloom-729": (
        (384, 2048, 2048), Mesh(data=8, tensor=8, pipe=6), (1, 4, 64, "1f1b", 1), "full", 132.85,
    ),
    "mlperf-v5.0-llama31-405b-nvidia-tyche-ngpu512-ngc25-04-nemo": (
        (512, 896, 8192), Mesh(data=8, tensor=4, context=2, pipe=8),
        (1, 1, 112, "interleaved", 8), "none", 19.43238,
    ),
    "tt-l3-8b-8-cp4": (
        (8, 2, 131072), Mesh(fsdp=2, context=4), (3, 1, 1, "none", 1), "full", 30.5957,
    ),
    "tt-gb200-scout-256-bf16": (
        (256, 2560, 8192), Mesh(fsdp=16, expert=16), (3, 10, 1, "none", 1), "none", 13.2793,
    ),
    "sc21-145.6b-1536": (
        (1536, 2304, 2048), Mesh(data=24, tensor=8, pipe=8), (0, 2, 48, "interleaved", 2),
        "full", 24.817,
    ),
    "megatron20-8b-a100-40-1024": (
        (1024, 2048, 1024), Mesh(data=128, tensor=8), (0, 16, 1, "none", 1), "full", 1.38,
    ),
    "recomp22-175b-sp-sel": (
        (64, 64, 2048), Mesh(tensor=8, pipe=8), (0, 1, 64, "interleaved", 3), "selective", 13.75,
    ),
    "deepseek-v3-2048": (
        (2048, 15360, 4096), Mesh(data=2, expert=64, pipe=16), (1, 1, 120, "dualpipe", 1),
        "selective", 19.907,
    ),
    "tpur-tpu7x-llama3.1-70b-256-s131072-fp8": (
        (256, 64, 131072), Mesh(fsdp=32, context=8), (3, 2, 1, "none", 1), "selective", 30.11,
    ),
    "tpur-v6e-gemma3-12b-512": (
        (512, 512, 32768), Mesh(data=2, fsdp=256), (3, 1, 1, "none", 1), "selective", 7.793,
    ),
    "maxtext-v5e-128b-32x256": (
        (8192, 8192, 2048), Mesh(data=32, fsdp=16, tensor=16), (3, 16, 1, "none", 1),
        "selective", 17.434,
    ),
    "palm-540b-6144": (
        (6144, 2048, 2048), Mesh(data=2, fsdp=256, tensor=12), (3, 4, 1, "none", 1),
        "selective", 17.612,
    ),
    "vtrain-multi-2027": (
        (256, 1024, 2048), Mesh(data=4, tensor=8, pipe=8), (0, 32, 8, "1f1b", 1), "full", 16.2414,
    ),
    "vtrain-single-3534": (
        (4, 16, 1024), Mesh(pipe=4), (0, 1, 16, "1f1b", 1), "full", 0.547592496,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROWS)
def test_row(runs: dict[str, Run], name: str) -> None:
    run, layout = runs[name], runs[name].layout
    size, mesh, pipeline, remat, seconds = ROWS[name]
    assert (run.system.n_chips, run.job.batch, run.job.seq) == size
    assert layout.mesh == mesh
    found = (layout.zero, layout.micro_batch, layout.n_microbatches, layout.schedule)
    assert (*found, layout.virtual) == pipeline
    assert ("selective" if layout.policy not in ("none", "full") else layout.policy) == remat
    assert run.measured_step_s == pytest.approx(seconds, rel=1e-4)


def test_dims_of_a_mixture_with_latent_attention(runs: dict[str, Run]) -> None:
    run = runs["mb-26.08-deepseek-v3-gb300-mxfp8-256"]
    dense, routed = run.config.groups
    assert (dense.count, routed.count) == (3, 58)
    assert isinstance(routed.layer.ffn, Moe)
    assert (routed.layer.ffn.n_experts, routed.layer.ffn.experts_per_token) == (256, 8)
    assert routed.layer.ffn.d_ff_shared == 2048
    assert routed.layer.attention.mla is not None
    assert (routed.layer.attention.d_head, routed.layer.attention.mla.d_v) == (192, 128)
    assert run.job.mtp_layers == 1


def test_layers_with_a_window_and_with_chunks(runs: dict[str, Run]) -> None:
    oss = runs["tpur-tpu7x-gpt-oss-120b-64-s8192-bf16"].config
    assert [(g.layer.attention.window, g.count) for g in oss.groups] == [(128, 18), (None, 18)]
    gemma = runs["tpur-v6e-gemma3-12b-512"].config
    assert [(g.layer.attention.window, g.count) for g in gemma.groups] == [(1024, 40), (None, 8)]
    maverick = runs["tpur-v5p-llama4-maverick-17b-128e-128"].config
    kinds = {
        (g.layer.attention.chunked, isinstance(g.layer.ffn, Moe)): g.count for g in maverick.groups
    }
    assert kinds == {(True, False): 24, (True, True): 12, (False, True): 12}


def test_links_of_the_record_replace_those_of_the_chip(runs: dict[str, Run]) -> None:
    omni_path = runs["bloom-729"].system
    assert omni_path.chip.need("scale_out.egress") == 0.225 * 4 * 100e9 / 8 / 8
    assert omni_path.name == "a100:384,scale_out=1.40625GB/s"
    assert runs["sc21-145.6b-1536"].system.name == "a100:1536"
    assert runs["vtrain-multi-2027"].system.chip.need("scale_out.egress") == 12.5e9
    variant = runs["tt-l3-8b-8-cp4"].system.chip
    assert (variant.hbm_bytes, variant.hbm_bytes_per_s) == (96 * units.GB, 2.4 * units.TB)
    assert runs["tt-b200-l3-8b-bf16"].system.chip.power_w == 750


def test_topologies(runs: dict[str, Run]) -> None:
    rack = runs["mlperf-v5.0-llama31-405b-nvidia-tyche-ngpu512-ngc25-04-nemo"]
    assert rack.system.topology == Switched(n_gpus=512, domain=64)
    assert "64 of the 72" in rack.assumed["domain"]
    assert runs["palm-540b-6144"].system.name == "v4:12x16x16*2"
    assert runs["maxtext-v5e-128b-32x256"].system.name == "v5e:16x16*32"
    slices = runs["tpur-v6e-llama3.1-8b-8"].system.topology
    assert slices == Torus(shape=(2, 4), wrapped=(False, False))


def test_dtypes_by_framework(runs: dict[str, Run]) -> None:
    def held(name: str) -> tuple[str, str, str, str, str | None]:
        job = runs[name].job
        return job.weights, job.compute, job.gradients, job.moments, job.master

    bridge = "mb-26.08-deepseek-v3-gb300-mxfp8-256"
    assert held(bridge) == ("bf16", "fp8", "bf16", "fp32", "fp32")
    assert held("megatron24-16b-192") == ("bf16", "bf16", "fp32", "fp32", "fp32")
    assert held("bloom-729") == ("fp16", "fp16", "fp16", "fp32", "fp32")
    assert held("mpt-30b-h100-512-s2048-b4096") == ("fp32", "bf16", "fp32", "fp32", None)
    assert held("tpur-v6e-gemma3-12b-512") == ("fp32", "bf16", "fp32", "fp32", None)
    assert held("deepseek-v3-2048") == ("bf16", "fp8", "fp32", "bf16", "fp32")


def test_recomputation_and_offload(runs: dict[str, Run]) -> None:
    offloaded = runs["tpur-v6e-llama3.1-70b-128"].layout
    assert offloaded.offload == ("layer_input", "q", "k", "v")
    assert offloaded.recomputed == ("norms", "mla_up", "attention", "out", "gate", "up",
                                    "activation")  # fmt: skip
    assert runs["recomp22-175b-sp-sel"].layout.recomputed == ("attention",)
    assert runs["tt-l3-8b-8-bf16-eager"].layout.recomputed == (
        "norms", "k", "out", "up", "activation",
    )  # fmt: skip
    half = runs["mb-26.02-llama3-70b-gb200-fp8-current-64"].layout
    assert (half.offload, half.offload_layers) == (("activations",), 40)
    modules = runs["mb-26.02-gpt-oss-120b-h100-bf16-64"].layout
    assert modules.recomputed == ("norms", "activation")


def test_what_else_a_row_says(runs: dict[str, Run]) -> None:
    calculon = runs["vtrain-multi-2027"]
    assert calculon.peers == {"calculon": pytest.approx(18.2174)}
    assert calculon.config.vocab == 51200
    assert runs["vtrain-single-3534"].config.vocab == 50304
    assert runs["bloom-729"].memory_bytes == 54 * units.GiB
    grok = runs["dgxc-24.11.1-grok-1-2-layer-proxy-h100-8-bf16"]
    assert grok.capacity_factor == 1.0
    assert grok.layout.overlap == ("grad_reduce", "param_gather", "pipe_p2p")
    assert runs["nemo-24.07-llama2-7b-h100-8-sft"].packed
    assert not runs["automodel-llama3-70b-h100-8-lora"].packed


def test_omni_path_carries_a_part_of_its_rate() -> None:
    links = {"hardware__family": "A100-80", "hardware__interconnect": "4x100 Gb/s per node"}
    plain = read(record(**links))
    omni = read(record(**{**links, "hardware__interconnect": "4x100 Gb/s Omni-Path per node"}))
    assert isinstance(plain, Run)
    assert isinstance(omni, Run)
    rates = [r.system.chip.scale_out.bytes_per_s_per_gpu_one_way for r in (plain, omni)]
    assert rates[0] == 6.25e9
    assert rates[1] == pytest.approx(0.225 * rates[0])
    assert "Omni-Path" in omni.assumed["interconnect"]


def test_a_recipe_has_the_last_word() -> None:
    named = record(id="mb-26.08-qwen3-30b-a3b-gb300-mxfp8-8", overlap={"cuda_graph": "none"})
    found, other = read(named), read(record(id="mb-26.04-qwen3-30b-a3b-gb300-mxfp8-8"))
    assert isinstance(found, Run)
    assert isinstance(other, Run)
    assert (found.captured, found.narrow_attention, found.dispatcher) == (1.0, True, "hybridep")
    assert (other.captured, other.narrow_attention) == (0.0, False)
