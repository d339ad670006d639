"""What sums in int8 have lost belongs to a run: it is saved, and a bad step does not change it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.train.command import printed

pytestmark = pytest.mark.oracle


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What `lost` printed."""
    return printed("lost", tmp_path_factory.mktemp("lost"))


@pytest.mark.parametrize("name", ["two copies", "stages"])
def test_it_is_taken_back_where_weights_have_as_many_copies(found: Any, name: str) -> None:
    """Also by stages that hold layers in another order."""
    told = found["saved"][name]
    assert told["weights"]
    assert told["lost"]
    assert not told["forgot"]
    assert not told["zeros"]


def test_it_starts_at_zero_where_they_have_not(found: Any) -> None:
    told = found["saved"]["four copies"]
    assert told["weights"]
    assert told["forgot"]
    assert told["zeros"]
    assert told["moved"][0] == 4


def test_a_bad_step_does_not_change_it(found: Any) -> None:
    assert found["bad"] == {"loses": True, "bad": 1, "kept": True}
