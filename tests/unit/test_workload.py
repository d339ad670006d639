"""The work: a training step, or sequences that decode."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise import units
from shardwise.errors import BadInput, BadShape, UnknownName
from shardwise.workload import (
    LARGEST_BATCH,
    OPTIMIZER_MOMENTS,
    PARAMETER_KINDS,
    Serve,
    Train,
)


@given(st.integers(1, LARGEST_BATCH), st.integers(1, LARGEST_BATCH))
def test_a_step(batch: int, seq: int) -> None:
    assert Train(batch=batch, seq=seq).tokens_per_step == batch * seq


@pytest.mark.parametrize(
    ("given", "weights", "optimizer", "state"),
    [
        ({}, 2, 12, 18),
        ({"master": None}, 2, 8, 14),
        ({"gradients": "bf16"}, 2, 12, 16),
        ({"gradients": "bf16", "master": None}, 2, 8, 12),
        ({"optimizer": "momentum"}, 2, 8, 14),
        ({"optimizer": "sgd"}, 2, 4, 10),
        ({"moments": "bf16"}, 2, 8, 14),
        ({"optimizer": "adafactor"}, 2, 4, 10),
        ({"optimizer": "adafactor", "master": None}, 2, 0, 6),
        ({"optimizer": "muon"}, 2, 8, 14),
        ({"optimizer": "muon", "moments": "bf16"}, 2, 6, 12),
        ({"weights": "fp32"}, 4, 8, 16),
        ({"weights": "fp32", "master": "fp32"}, 4, 8, 16),  # the weights again
        ({"weights": "fp16"}, 2, 12, 18),
        ({"weights": "fp8"}, 1, 12, 17),
    ],
)
def test_bytes_per_parameter(
    given: dict[str, Any], weights: float, optimizer: float, state: float
) -> None:
    """18 with all that trains: 2 + 4 + 4 + 8. Book §5: 10 for bf16 weights and Adam, no more."""
    job = Train(batch=1, seq=1, **given)
    assert (job.weight_bytes, job.optimizer_bytes, job.state_bytes) == (weights, optimizer, state)


@pytest.mark.parametrize(
    ("optimizer", "moments"),
    [
        ("adamw", (2, 2, 2)),
        ("momentum", (1, 1, 1)),
        ("sgd", (0, 0, 0)),
        ("adafactor", (0, 0, 1)),
        ("muon", (1, 2, 2)),
    ],
)
def test_moments_by_kind_of_parameter(optimizer: str, moments: tuple[int, ...]) -> None:
    job = Train(batch=1, seq=1, optimizer=optimizer, moments="bf16", master="fp32")
    found = [job.optimizer_bytes_of(kind) for kind in ("matrix", "embedding", "vector")]
    assert found == [2 * m + 4 for m in moments]
    assert job.optimizer_bytes == found[0]


def test_every_optimizer_is_known_for_every_kind() -> None:
    assert sorted(OPTIMIZER_MOMENTS) == ["adafactor", "adamw", "momentum", "muon", "sgd"]
    for name in OPTIMIZER_MOMENTS:
        job = Train(batch=1, seq=1, optimizer=name)
        assert all(4 <= job.optimizer_bytes_of(kind) <= 12 for kind in PARAMETER_KINDS)
    with pytest.raises(UnknownName, match='unknown kind of parameter "norm"'):
        Train(batch=1, seq=1).optimizer_bytes_of("norm")


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, 4),
        ({"gradients": "bf16"}, 2),
        ({"reduce": "bf16"}, 2),
        ({"gradients": "bf16", "reduce": "fp32"}, 4),
        ({"reduce": "int8"}, 4),  # what is not summed over copies of matrices
        ({"reduce": "int8", "gradients": "bf16"}, 2),
    ],
)
def test_bytes_of_a_gradient_that_is_sent(given: dict[str, str], sent: float) -> None:
    job = Train(batch=1, seq=1, **given)
    assert job.reduce_bytes == sent
    # How gradients are sent does not change what is held.
    held = Train(batch=1, seq=1, gradients=given.get("gradients", "fp32"))
    assert job.state_bytes == held.state_bytes


def test_sums_in_int8_send_scales_and_keep_what_is_lost() -> None:
    exact, rounded = Train(batch=1, seq=1), Train(batch=1, seq=1, reduce="int8")
    assert (exact.sums_in_int8, exact.error_feedback_bytes) == (False, 0.0)
    assert (rounded.sums_in_int8, rounded.error_feedback_bytes) == (True, 2.0)
    assert rounded.int8_gradient_bytes == 1 + 4 / 256


def test_all_sizes_that_cannot_be_are_told() -> None:
    with pytest.raises(BadInput) as error:
        Train(batch=0, seq=2**32, tokens=0)
    assert error.value.problems == (
        "batch 0 is not between 1 and 2,147,483,648.",
        "sequence length 4,294,967,296 is not between 1 and 2,147,483,648.",
        "tokens 0 is not between 1 and 1e18.",
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"weights": "bf17"}, 'unknown dtype "bf17". Close: "bf16"'),
        ({"compute": "fp"}, 'unknown dtype "fp"'),
        ({"gradients": ""}, 'unknown dtype ""'),
        ({"moments": "x"}, 'unknown dtype "x"'),
        ({"reduce": "int7"}, 'unknown dtype "int7". Close: "int8"'),
        ({"reduce": ""}, 'unknown dtype ""'),
        ({"optimizer": "muom"}, 'unknown optimizer "muom". Close: "muon"'),
        ({"master": "fp33"}, 'unknown dtype "fp33". Close: "fp32"'),
        ({"optimizer": "adam"}, 'unknown optimizer "adam". Close: "adamw".'),
        ({"remat": "some"}, 'unknown remat policy "some"'),
    ],
)
def test_unknown_names(given: dict[str, str], told: str) -> None:
    with pytest.raises(UnknownName) as error:
        Train(batch=1, seq=1, **given)
    assert told in str(error.value)


def test_serving() -> None:
    job = Serve(context=8192)
    assert (job.batch, job.weights, job.kv, job.compute) == (None, "bf16", "bf16", "bf16")
    with pytest.raises(BadInput, match="context 0 is not between 1 and 2,147,483,648"):
        Serve(context=0)
    with pytest.raises(BadInput, match="batch -1 is not between"):
        Serve(context=1, batch=-1)
    with pytest.raises(UnknownName, match='unknown dtype "int9"'):
        Serve(context=1, kv="int9")


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("1024x4096", (1024, 4096)),
        ("1024X4096", (1024, 4096)),
        ("1024×4096", (1024, 4096)),
        ("1kx4Ki", (1000, 4096)),
        (" 8 x 128 ", (8, 128)),
    ],
)
def test_a_batch_in_words(text: str, batch: tuple[int, int]) -> None:
    assert units.parse_batch(text) == batch


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1024", 'batch "1024" is not SEQUENCESxLENGTH. Write 1024x4096 (1,024 of 4,096 tokens).'),
        ("1024x", "is not SEQUENCESxLENGTH"),
        ("x4096", "is not SEQUENCESxLENGTH"),
        ("2x3x4", "is not SEQUENCESxLENGTH"),
        ("", "is not SEQUENCESxLENGTH"),
        ("0x4", 'batch sequences "0" is below 1.'),
        ("4x1.5", 'sequence length "1.5" is not a whole number.'),
        ("axb", 'batch sequences "a" is not a number'),
    ],
)
def test_a_batch_that_is_none(text: str, told: str) -> None:
    with pytest.raises(BadInput) as error:
        units.parse_batch(text)
    assert told in str(error.value)


def test_a_batch_is_a_shape() -> None:
    with pytest.raises(BadShape):
        units.parse_batch("12")


@given(st.text(alphabet="0123456789xX×kKiM. -e", max_size=14))
def test_any_text_is_a_batch_or_refused(text: str) -> None:
    try:
        sequences, length = units.parse_batch(text)
    except BadInput:
        return
    assert sequences >= 1
    assert length >= 1
