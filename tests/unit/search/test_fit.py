"""The smallest machine that holds a model."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from shardwise.errors import DoesNotFit, UnknownFigure
from shardwise.estimate.chip_memory import capacity_bytes
from shardwise.hardware import parse_chip, parse_system
from shardwise.models import count, load, names
from shardwise.search.fit import fit, fit_on
from shardwise.search.machines import machines_of
from shardwise.units import GiB
from shardwise.workload import Serve, Train

LLAMA = load("llama3-70b")


@pytest.mark.parametrize(
    ("weights", "system"), [("bf16", "v5e:4x4"), ("int8", "v5e:2x4"), ("int4", "v5e:2x2")]
)
def test_the_smallest_slices_of_the_book(weights: str, system: str) -> None:
    """LLaMA-3-70B on v5e takes 4x4, 4x2 and 2x2 for bf16, int8 and int4. Book §8."""
    found = fit(LLAMA, parse_chip("v5e"), Serve(context=8192, weights=weights, kv=weights))
    assert found.system == system


def test_bytes_of_a_sequence() -> None:
    rows = [
        fit(LLAMA, parse_chip("v5e,hbm=16GB"), Serve(context=8192, weights=d, kv=d))
        for d in ("bf16", "int8", "int4")
    ]
    assert [r.kv_bytes_per_sequence for r in rows] == [8192 * n for n in (327_680, 163_840, 81_920)]


@pytest.mark.parametrize("weights", ["bf16", "fp8"])
def test_people_run_70b_in_bf16_on_two_h100(weights: str) -> None:
    found = fit(LLAMA, parse_chip("h100"), Serve(context=8192, weights=weights, kv=weights))
    assert found.n_chips == {"bf16": 2, "fp8": 1}[weights]
    assert found.sequences >= 1


@pytest.mark.parametrize(("chip", "largest"), [("m1", 1), ("gh200", 1), ("rtx-4090", 8)])
def test_no_machine_without_a_figure_for_its_links(chip: str, largest: int) -> None:
    assert max(system.n_chips for system in machines_of(parse_chip(chip))) == largest
    with pytest.raises(DoesNotFit, match=f"the largest, {chip}:{largest}, has"):
        fit(load("llama3.1-405b"), parse_chip(chip), Serve(context=8192))


def test_training_holds_the_state() -> None:
    found = fit(LLAMA, parse_chip("h100"), Train(batch=1, seq=2048))
    params = count.parameters(LLAMA).total
    assert found.state == {"weights": 2 * params, "gradients": 4 * params, "optimizer": 12 * params}
    assert found.state_bytes == 18 * params
    assert found.hbm_bytes - 18 * params >= found.left_bytes >= 0
    assert found.batch == 4 * found.n_chips
    assert found.sequences is None


def test_a_state_alone_in_memory_does_not_fit() -> None:
    model = load("llama3-8b")
    state = 18 * count.parameters(model).total
    system = parse_system(f"h100:1,hbm={state}B")
    found = fit_on(model, system, Train(batch=1, seq=2048))
    assert not found.fits
    assert found.left_bytes < 0
    assert fit(model, system.chip, Train(batch=1, seq=2048)).n_chips > 1


@pytest.mark.parametrize("chip", ["v5e", "h100", "gb200"])
@pytest.mark.parametrize("job", [Train(batch=1, seq=4096), Serve(context=4096, batch=8)])
def test_it_is_the_smallest(chip: str, job: Train | Serve) -> None:
    card = parse_chip(chip)
    for name in ("llama3-8b", "llama3-70b", "mixtral-8x22b"):
        found = fit(load(name), card, job)
        smaller = [system for system in machines_of(card) if system.n_chips < found.n_chips]
        assert not any(fit_on(load(name), system, job).fits for system in smaller[-3:])
        assert found.state_bytes <= found.hbm_bytes == found.n_chips * capacity_bytes(card)
        assert parse_system(found.system).n_chips == found.n_chips


@pytest.mark.parametrize(("name", "chips"), [("llama3.1-405b", 112), ("llama3-70b", 24)])
def test_training_on_any_number_of_whole_nodes(name: str, chips: int) -> None:
    """Among numbers of nodes that do not double, too: 14 nodes have room for a 405B model."""
    model, card, job = load(name), parse_chip("h100"), Train(batch=1, seq=8192)
    assert fit(model, card, job).n_chips == chips
    fewer = range(8, chips, 8)
    assert not any(fit_on(model, parse_system(f"h100:{n}"), job).fits for n in fewer)


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "h100", "gb200", "a100"])
def test_sizes_ascend_and_exist(chip: str) -> None:
    found = list(machines_of(parse_chip(chip)))
    counts = [system.n_chips for system in found]
    assert counts == sorted(counts)
    assert len({system.name for system in found}) == len(found)
    for system in found[:60]:
        assert parse_system(system.name) == system


def test_machines_of_a_users_chip_are_named_by_its_file(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    shutil.copy(root / "src/shardwise/hardware/catalog/h100.toml", path)
    first = next(machines_of(parse_chip(str(path))))
    assert first.name == f"{path}:1"
    assert parse_system(first.name) == first


def test_more_sequences_need_more() -> None:
    one, many = (
        fit(LLAMA, parse_chip("h100"), Serve(context=8192, batch=batch)) for batch in (1, 512)
    )
    assert one.n_chips < many.n_chips
    assert many.state["kv_cache"] == 512 * one.state["kv_cache"]
    assert many.sequences >= 512


def test_what_no_machine_holds() -> None:
    with pytest.raises(DoesNotFit) as error:
        fit(load("megatron-1t"), parse_chip("v5e,hbm=1GiB"), Train(batch=1, seq=1))
    text = str(error.value)
    assert text.startswith("does not fit: megatron-1t needs ")
    assert text.endswith(f"the largest, v5e:16x16, has {256 * GiB / GiB:.0f} GiB.")


def test_a_chip_without_memory() -> None:
    with pytest.raises(UnknownFigure, match=r"hbm\.capacity"):
        fit(LLAMA, parse_chip("groq-lpu"), Serve(context=1))


def test_every_preset_fits_somewhere() -> None:
    for name in names():
        found = fit(load(name), parse_chip("v5p"), Serve(context=1024))
        assert found.sequences >= 1
