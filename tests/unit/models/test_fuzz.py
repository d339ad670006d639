"""No text and no config.json ends in anything but a model or a worded error."""

from __future__ import annotations

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from shardwise.errors import BadInput
from shardwise.models import count, from_dict, load, names
from shardwise.models.families import builders
from shardwise.models.presets import presets

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 300),
    st.sampled_from([10**6, 2**31, 10**400, 0.5, 1e308, float("nan"), "", "4", "full", [], {}]),
    st.lists(st.one_of(st.integers(-1, 9), st.sampled_from(["full_attention", "x", None]))),
    st.dictionaries(st.sampled_from(["hidden_size", "n_embd"]), st.integers(-1, 9), max_size=2),
)
KEYS = sorted({key for preset in presets().values() for key in preset.read()})


@given(st.sampled_from(names()), st.dictionaries(st.sampled_from(KEYS), ODD, max_size=4))
def test_a_preset_with_odd_values(name, changes):
    with contextlib.suppress(BadInput):
        model = from_dict(presets()[name].read() | changes, name=name)
        assert 0 < count.parameters(model).active <= count.parameters(model).total


@given(st.sampled_from(sorted(builders()[0])), st.dictionaries(st.sampled_from(KEYS), ODD))
def test_any_family_with_odd_values(model_type, data):
    with contextlib.suppress(BadInput):
        from_dict(data | {"model_type": model_type}, name="odd")


@given(st.dictionaries(st.text(max_size=5) | st.just("architectures"), ODD))
def test_any_object(data):
    with contextlib.suppress(BadInput):
        from_dict(data, name="odd")


@given(
    st.text(max_size=30) | st.text("lama3-70b,=n_ks/.1~", max_size=20).map("llama3-70b,".__add__)
)
def test_any_text(text):
    with contextlib.suppress(BadInput):
        load(text)
