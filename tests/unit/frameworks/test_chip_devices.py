"""Chips of 7x (Ironwood), which are two devices each to JAX and MaxText."""

from __future__ import annotations

from typing import Any

import pytest

import shardwise as sw
from shardwise.errors import BadInput, BadShape
from shardwise.frameworks import registry, replan
from shardwise.frameworks.exported import training_run

# As in a recipe of 64 chips (tpu7x-4x4x4).
RECIPE = "model_name=llama3.1-70b per_device_batch_size=2 max_target_length=8192 remat_policy=full"
MACHINE = "7x:4x4x4"


def imported(sizes: str, machine: str = MACHINE) -> sw.Plan:
    launch: Any = registry.read(f"{RECIPE} {sizes}", "run.sh", "maxtext").launch
    return replan.training_plan(launch, sw.model("llama3.1-70b"), sw.hardware(machine))


@pytest.mark.parametrize(
    ("sizes", "mesh"),
    [
        ("ici_fsdp_parallelism=-1", {"fsdp": 64}),
        ("ici_fsdp_parallelism=128", {"fsdp": 64}),
        ("ici_fsdp_parallelism=64 ici_data_parallelism=2", {"fsdp": 32, "data": 2}),
        ("ici_fsdp_parallelism=1 ici_data_parallelism=8 ici_tensor_parallelism=16",
         {"data": 8, "tensor": 8}),
    ],
)  # fmt: skip
def test_devices_of_a_recipe_are_half_as_many_chips(sizes: str, mesh: dict[str, int]) -> None:
    plan = imported(sizes)
    assert {role: n for role, n in plan.layout.mesh.sizes.items() if n > 1} == mesh
    assert plan.job.batch == 2 * 128  # of each device


def test_the_same_recipe_counts_chips_where_they_are_devices() -> None:
    plan = imported("ici_fsdp_parallelism=128", "v5p:4x4x8")
    assert (plan.layout.mesh.fsdp, plan.job.batch) == (128, 256)


def test_another_number_of_devices_is_refused_with_chips() -> None:
    message = "256 devices of JAX, and 7x:4x4x4 has 128, 2 a chip. Name a machine of 128 chips."
    with pytest.raises(BadInput, match=message):
        imported("ici_fsdp_parallelism=256")
    with pytest.raises(BadShape, match="Write ici_fsdp_parallelism=2, and 1/2 of ici_data"):
        imported("ici_fsdp_parallelism=1 ici_data_parallelism=128")


@pytest.mark.parametrize(
    ("sizes", "micro_batch", "machine"),
    [
        ({"fsdp": 64}, 2, MACHINE),
        ({"fsdp": 16, "tensor": 4}, 2, MACHINE),
        ({"data": 2, "fsdp": 64}, 2, f"{MACHINE}*2"),
        ({"data": 64}, 2, MACHINE),
        ({"data": 64}, 1, MACHINE),
    ],
)
def test_a_plan_comes_back(sizes: dict[str, int], micro_batch: int, machine: str) -> None:
    model, system = sw.model("llama3-8b"), sw.hardware(machine)
    job = sw.Train(batch=micro_batch * 64 * (2 if "*2" in machine else 1), seq=4096, remat="full")
    plan = sw.evaluate(model, system, job, sw.Mesh(**sizes), {"micro_batch": micro_batch})
    settings = dict(registry.find("maxtext").write(training_run(plan)).settings)
    product = 1
    for key, size in settings.items():
        product *= size if key.startswith("ici_") else 1
    assert product == 128
    launch: Any = registry.read(registry.export(plan, "maxtext").text, "run.yml").launch
    assert launch.batch == plan.job.batch
    assert replan.training_plan(launch, model, system).layout.mesh == plan.layout.mesh


def test_one_sequence_a_chip_is_shared_along_tensor() -> None:
    model, system = sw.model("llama3-8b"), sw.hardware(MACHINE)
    job = sw.Train(batch=64, seq=4096, remat="full")
    plan = sw.evaluate(model, system, job, sw.Mesh(fsdp=64))
    export = registry.export(plan, "maxtext")
    assert "ici_fsdp_parallelism: 64\n" in export.text
    assert "ici_tensor_parallelism: 2\n" in export.text
    assert "64 chips are 128 devices of JAX, 2 each." in export.notes
    whole = sw.evaluate(model, system, job, sw.Mesh(fsdp=2, tensor=32), {"micro_batch": 1})
    with pytest.raises(BadInput, match=r"1/64 of the heads.*--fix micro_batch=2"):
        registry.export(whole, "maxtext")
