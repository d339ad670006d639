"""The names of systems: what is understood, and what is said of the rest."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shardwise.errors import BadInput, BadShape, UnknownName
from shardwise.hardware import (
    Switched,
    Torus,
    catalog_chip,
    chip_names,
    legal_slices,
    parse_chip,
    parse_system,
)


@pytest.mark.parametrize(
    ("text", "name", "chips", "per_slice", "hosts"),
    [
        ("v5p:16x20x28", "v5p:16x20x28", 8960, 8960, 2240),
        ("v5p:16x20x28*4", "v5p:16x20x28*4", 35840, 8960, 8960),
        ("V5E:4X4", "v5e:4x4", 16, 16, 2),
        ("v5e:16x16", "v5e:16x16", 256, 256, 32),
        ("v5e:4x2", "v5e:4x2", 8, 8, 1),
        ("v5e:1x1", "v5e:1x1", 1, 1, 1),
        ("v4p:4x4x4", "v4:4x4x4", 64, 64, 16),
        ("v4:2x2x1", "v4:2x2x1", 4, 4, 1),
        ("v5p:16x16x16", "v5p:16x16x16", 4096, 4096, 1024),
        ("ironwood:8x16x16", "7x:8x16x16", 2048, 2048, 512),
        ("h100:64", "h100:64", 64, 64, 8),
        ("h100:16384", "h100:16384", 16384, 16384, 2048),
        ("gb200:72", "gb200:72", 72, 72, 18),
        ("a100-80g:4", "a100:4", 4, 4, 1),
        ("cpu:8", "cpu:8", 8, 8, None),
        ("groq:576", "groq:576", 576, 576, None),
        ("v5e:4x4*1", "v5e:4x4", 16, 16, 2),
    ],
)
def test_names(text: str, name: str, chips: int, per_slice: int, hosts: int | None) -> None:
    system = parse_system(text)
    assert (system.name, system.n_chips, system.chips_per_slice) == (name, chips, per_slice)
    assert system.n_hosts == hosts
    assert parse_system(system.name) == system


def test_topologies() -> None:
    assert isinstance(parse_system("v5e:4x4").topology, Torus)
    assert parse_system("h100:64").topology == Switched(n_gpus=64, domain=8)
    assert parse_system("gb200:144").topology == Switched(n_gpus=144, domain=72)
    # Racks that are partly used: as few as possible, the same hosts of 4 in each.
    for n_gpus, domain in ((256, 64), (128, 64), (1024, 64), (160, 40), (216, 72), (64, 72)):
        assert parse_system(f"gb200:{n_gpus}").topology == Switched(n_gpus=n_gpus, domain=domain)
    with pytest.raises(BadShape, match=r"do not fill domains of 72.* Nearest: 72, 144"):
        parse_system("gb200:76")  # 38 GPUs of a rack are no whole hosts; 4 of 19 racks no machine
    # Nothing is known of how a machine's own devices are joined: one domain.
    assert parse_system("cpu:8").topology == Switched(n_gpus=8, domain=8)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("v5p:8960", "a torus needs a shape: v5p:16x20x28"),
        ("v5e:1", "a torus needs a shape: v5e:1x1."),
        ("v5e:100", "no slice of v5e has 100 chips. Nearest: v5e:4x8"),
        ("v5e", "v5e needs a size: v5e:1x1, v5e:2x2, v5e:2x4, v5e:4x4."),
        ("h100", "h100 needs a size: h100:8, h100:64."),
        ("h100:8x16", "Write the number of chips: h100:128."),
        ("h100:20", "Nearest: 16, 24."),
        ("h100:64*2", "h100 has no slices over DCN (*)"),
        ("h100:0", "has a dimension of 0"),
        ("h100:-8", "is not a number of chips"),
        ("h100:", "h100 needs a size: h100:8, h100:64."),
        ("v5e:4x4*", 'number of slices "" is not a shape'),
        ("v5e:4x4*2x2", "number of slices is a shape. Write one whole number."),
        ("v5e:4x4*0", "has a dimension of 0"),
        ("v5p:16x20x28*9000000", "80,640,000,000 chips; the limit is 10,000,000."),
        ("h100:99999999999", "more than 10,000,000 chips"),
    ],
)
def test_a_size_that_cannot_be(text: str, told: str) -> None:
    with pytest.raises(BadShape) as error:
        parse_system(text)
    assert told in str(error.value)


@pytest.mark.parametrize("text", ["", ":", "v5:4x2", "zzz:4", "h1000x8", "*", "x8"])
def test_an_unknown_chip(text: str) -> None:
    with pytest.raises(UnknownName, match="List: shardwise hw"):
        parse_system(text)


def test_values_of_ones_own() -> None:
    system = parse_system("v5e:4x4, hbm = 16GiB,hbm_bandwidth=820 GB/s,ici=50GB/s,price=1 USD/h")
    chip = system.chip
    assert system.name == "v5e:4x4,hbm=16GiB,hbm_bandwidth=820GB/s,ici=50GB/s,price=1USD/h"
    assert parse_system(system.name) == system
    assert (chip.hbm_bytes, chip.hbm_bytes_per_s) == (16 * 2**30, 8.2e11)
    assert (chip.need("ici.link"), chip.usd_per_chip_hour) == (5e10, 1.0)
    # What the compiler leaves of another capacity says nothing about this one.
    assert chip.hbm_usable_bytes is None
    assert chip.figures["hbm.capacity"].source == "given by the user"


def test_values_of_ones_own_for_gpus() -> None:
    system = parse_system("h100:64,node=370GB/s,scale_out=400 Gb/s,dcn=1GB/s,pcie=60GB/s")
    assert system.chip.need("node.egress") == 3.7e11
    assert system.chip.need("scale_out.egress") == 5e10
    assert system.chip.pcie_bytes_per_s_per_chip == 6e10


def test_a_chip_without_a_size() -> None:
    assert parse_chip("v5p") == catalog_chip("v5p")
    assert parse_chip("v5e,hbm=1TB").hbm_bytes == 1e12


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ("hbm=16", ["hbm 16 has no unit. 16GB = "]),
        ("hbm=16GB/s", ['"GB/s" is not a size']),
        ("hbm=0GB", ['hbm "0GB" is zero']),
        ("hbm=-1GB", ['hbm "-1GB" is negative']),
        ("ici=3GB", ["the wrong unit"]),
        ("price=4", ["has no unit. Use USD/h."]),
        ("price=4EUR/h", ["the wrong unit. Use USD/h."]),
        ("dcn=1e300GB/s", ["is too large"]),
        ("hmb=16GB", ['unknown option of the hardware "hmb". Close: "hbm"']),
        ("hbm", ["hbm"]),
        ("node=1GB/s", ["v5e has no node links"]),
        ("hbm=16,ici=3,zzz=1", ["hbm 16 has no unit", 'ici "3" has no unit', '"zzz"']),
    ],
)
def test_options_that_cannot_be_used_are_told_together(options: str, told: list[str]) -> None:
    with pytest.raises(BadInput) as error:
        parse_system(f"v5e:4x4,{options}")
    assert len(error.value.problems) == len(told)
    for problem, part in zip(error.value.problems, told, strict=True):
        assert part in problem


TEXTS = st.one_of(
    st.text(max_size=30),
    st.text(alphabet="v5phx*:,=0123456789./gGBi ", max_size=30),
    st.builds(
        "{}:{}{}".format,
        st.sampled_from(["v5e", "v5p", "h100", "cpu", "wse3"]),
        st.lists(st.integers(-1, 40).map(str), max_size=4).map("x".join),
        st.sampled_from(["", "*2", "*", ",hbm=1GB", ",", ",=", "*x"]),
    ),
)


@given(TEXTS)
@example("v5e:4x4*\N{SUPERSCRIPT TWO}")
@example("\N{KELVIN SIGN}:4")
@example("v5e:4x4,hbm=1e999GB")
@example(".toml:4x4")
@example("\0.toml:4x4")
def test_any_text_is_understood_or_refused_with_words(text: str) -> None:
    try:
        system = parse_system(text)
    except BadInput:
        return
    assert parse_system(system.name) == system


@given(st.sampled_from([n for n in chip_names() if catalog_chip(n).ici]), st.data())
def test_every_slice_has_a_name(name: str, data: st.DataObject) -> None:
    torus = data.draw(st.sampled_from(legal_slices(catalog_chip(name))))
    assert parse_system(f"{name}:{torus}").topology == torus
