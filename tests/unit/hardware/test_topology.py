"""Slices: which exist, which of their axes wrap, and what is said of those that do not exist."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadShape, UnknownFigure
from shardwise.hardware import (
    Switched,
    Torus,
    catalog_chip,
    fat_tree,
    legal_slices,
    make_slice,
    parse_shape,
    show_shape,
    wrap_axes,
)

TORI = ["v2", "v3", "v4", "v5e", "v5p", "v6e", "7x"]


@pytest.mark.parametrize(
    ("chip", "shape", "wrapped"),
    [
        ("v5p", (4, 4, 4), (True, True, True)),
        ("v5p", (16, 20, 28), (True, True, True)),
        ("v4", (4, 4, 8), (True, True, True)),
        ("7x", (4, 4, 4), (True, True, True)),
        ("v5p", (2, 4, 4), (False, False, False)),
        ("v4", (2, 2, 1), (False, False, False)),
        ("v5e", (16, 16), (True, True)),
        ("v6e", (8, 16), (False, True)),
        ("v5e", (16, 8), (True, False)),
        ("v5e", (4, 4), (False, False)),
        ("v3", (32, 32), (True, True)),
        ("v3", (16, 32), (False, False)),
        ("v2", (16, 16), (True, True)),
        ("v2", (8, 8), (False, False)),
    ],
)
def test_wraparound(chip: str, shape: tuple[int, ...], wrapped: tuple[bool, ...]) -> None:
    assert make_slice(catalog_chip(chip), shape).wrapped == wrapped


@pytest.mark.parametrize(
    ("chip", "chips"),
    [("v3", 1024), ("v4", 4096), ("v5p", 8960), ("v5e", 256), ("v6e", 256), ("7x", 9216)],
)
def test_the_pod_is_the_largest_slice(chip: str, chips: int) -> None:
    assert legal_slices(catalog_chip(chip))[-1].n_chips == chips


def test_slices_of_v5e() -> None:
    slices = [str(torus) for torus in legal_slices(catalog_chip("v5e"))]
    assert slices == ["1x1", "2x2", "2x4", "4x4", "4x8", "8x8", "8x16", "16x16"]


def test_the_documented_slices_of_v5p_exist() -> None:
    slices = {str(torus) for torus in legal_slices(catalog_chip("v5p"))}
    documented = "2x2x1 2x2x2 2x4x4 4x4x4 4x4x8 4x8x8 8x8x8 8x8x16 8x16x16 16x16x16 16x16x24"
    assert set(documented.split()) <= slices


@pytest.mark.parametrize("name", TORI)
def test_slices_are_ordered_and_can_be_made(name: str) -> None:
    chip = catalog_chip(name)
    slices = legal_slices(chip)
    assert [s.n_chips for s in slices] == sorted(s.n_chips for s in slices)
    assert len({tuple(sorted(s.shape)) for s in slices}) == len(slices)
    for torus in slices:
        assert make_slice(chip, torus.shape) == torus


@given(st.sampled_from(TORI), st.data())
def test_the_order_of_dimensions_does_not_matter(name: str, data: st.DataObject) -> None:
    chip = catalog_chip(name)
    torus = data.draw(st.sampled_from(legal_slices(chip)))
    turned = tuple(data.draw(st.permutations(torus.shape)))
    assert make_slice(chip, turned).n_chips == torus.n_chips
    assert sorted(make_slice(chip, turned).wrapped) == sorted(torus.wrapped)


@given(st.sampled_from(TORI), st.lists(st.integers(1, 40), min_size=1, max_size=4).map(tuple))
def test_a_slice_is_made_or_refused_with_choices(name: str, shape: tuple[int, ...]) -> None:
    chip = catalog_chip(name)
    if tuple(sorted(shape)) in {tuple(sorted(s.shape)) for s in legal_slices(chip)}:
        assert make_slice(chip, shape).shape == shape
        return
    with pytest.raises(BadShape) as error:
        make_slice(chip, shape)
    assert f"no slice {name}:{show_shape(shape)}: " in str(error.value)
    assert f"Nearest: {name}:" in str(error.value)


@pytest.mark.parametrize(
    ("chip", "shape", "told"),
    [
        ("v5e", (4, 16), "rented only in the listed shapes. Nearest: v5e:4x4 (16 chips), v5e:4x8"),
        ("v5e", (32, 8), "rented only in the listed shapes"),
        ("v5e", (32, 16), "512 chips, and a pod has 256 (16x16)."),
        ("v5e", (2, 2, 1), "3 dimensions, and the torus of v5e has 2."),
        ("v5p", (4, 4), "2 dimensions, and the torus of v5p has 3."),
        ("v5p", (6, 4, 4), "or made of whole 4x4x4 cubes. Nearest: v5p:4x4x4 (64 chips)"),
        ("v4", (16, 16, 32), "8,192 chips, and a pod has 4,096 (16x16x16)."),
        ("7x", (1, 1, 2), "Nearest: 7x:1x1x1 (1 chip), 7x:2x2x1 (4 chips)"),
    ],
)
def test_an_impossible_slice(chip: str, shape: tuple[int, ...], told: str) -> None:
    with pytest.raises(BadShape) as error:
        make_slice(catalog_chip(chip), shape)
    assert told in str(error.value)


def test_a_gpu_has_no_slices() -> None:
    with pytest.raises(BadShape, match="h100 is not joined in a torus"):
        make_slice(catalog_chip("h100"), (2, 2))


def test_farthest_chip() -> None:
    torus = Torus(shape=(16, 16, 5), wrapped=(False, True, True))
    assert [torus.farthest(axis) for axis in range(3)] == [15, 8, 2]
    assert (torus.n_chips, torus.n_axes) == (1280, 3)


def test_a_torus_of_any_shape_can_be_built() -> None:
    assert Torus(shape=(3, 5), wrapped=(True, False)).n_chips == 15
    for shape, wrapped in (((), ()), ((0, 4), (True, True)), ((4,), (True, True))):
        with pytest.raises(BadShape):
            Torus(shape=shape, wrapped=wrapped)


def test_without_a_pod_nothing_is_the_full_pod() -> None:
    assert wrap_axes("full_pod", (4, 4), None) == (False, False)


def test_shapes() -> None:
    assert parse_shape(" 16X20x28 ") == (16, 20, 28)
    assert show_shape((16, 20, 28)) == "16x20x28"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("4x", "is not a shape"),
        ("four", "is not a shape"),
        ("-4", "is not a shape"),
        ("4.5", "is not a shape"),
        ("٤x٤", "is not a shape"),
        ("y" * 99, r'"y{37}\.\.\." is not a shape'),
        ("4x0", "has a dimension of 0"),
        ("10000001", "more than 10,000,000 chips"),
        ("4000x4000", "more than 10,000,000 chips"),
        ("9" * 5000, "more than 10,000,000 chips"),
    ],
)
def test_a_shape_that_is_none(text: str, told: str) -> None:
    with pytest.raises(BadShape, match=told):
        parse_shape(text)


def test_switched_domains() -> None:
    gpus = Switched(n_gpus=64, domain=8)
    assert (gpus.n_chips, gpus.n_nodes, str(gpus)) == (64, 8, "64")
    assert Switched(n_gpus=3, domain=8).n_nodes == 1


@pytest.mark.parametrize(("n_gpus", "near"), [(20, "16, 24"), (9, "8, 16"), (1001, "1000, 1008")])
def test_no_domain_is_partial(n_gpus: int, near: str) -> None:
    with pytest.raises(BadShape, match=rf"do not fill domains of 8.*Nearest: {near}\."):
        Switched(n_gpus=n_gpus, domain=8)


@pytest.mark.parametrize(("n_gpus", "domain"), [(0, 8), (8, 0), (-8, 8)])
def test_no_gpus_is_no_domain(n_gpus: int, domain: int) -> None:
    with pytest.raises(BadShape, match="both must be at least 1"):
        Switched(n_gpus=n_gpus, domain=domain)


def test_the_superpod_of_the_book() -> None:
    tree = fat_tree(catalog_chip("h100"), 1024)
    assert (tree.n_nodes, tree.n_units, tree.n_node_switches) == (128, 4, 512)
    assert (tree.n_leaves, tree.n_spines, tree.n_cores, tree.n_switches) == (32, 16, 0, 560)
    assert (tree.node_bytes_per_s, tree.unit_bytes_per_s) == (4e11, 12.8e12)
    assert tree.spine_bytes_per_s == 51.2e12
    # Full bisection: every node has at the spine what it has at its own cards.
    assert tree.spine_bytes_per_s / tree.n_nodes == tree.node_bytes_per_s


@pytest.mark.parametrize(
    ("n_gpus", "units", "spines", "cores"), [(2048, 8, 32, 0), (4096, 16, 128, 64)]
)
def test_larger_trees_of_the_book(n_gpus: int, units: int, spines: int, cores: int) -> None:
    tree = fat_tree(catalog_chip("h100"), n_gpus)
    assert (tree.n_units, tree.n_spines, tree.n_cores) == (units, spines, cores)


def test_a_tree_that_is_not_described() -> None:
    with pytest.raises(UnknownFigure, match=r"gb200 has no figure for scale_out\.switch_ports"):
        fat_tree(catalog_chip("gb200"), 144)
