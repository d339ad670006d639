"""bench/peers.py: how answers are asked for and kept, and the statistics of both sides' errors."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.benches import imported

ANSWERS_TWICE = """
import json, sys
for n, line in zip(range(2), sys.stdin):
    call = json.loads(line)
    print(json.dumps({"tpot_s": call["isl"] / 1e5, "ttft_s": 0.1, "seconds": n}), flush=True)
"""


@pytest.fixture
def peers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    (module,) = imported(monkeypatch, "peers")
    monkeypatch.setattr(module, "KEPT", tmp_path / "peers.json")
    return module


def row(peers: ModuleType, ours: dict[str, Any], theirs: dict[str, Any] | None) -> Any:
    """A row of vLLM whose measured TPOT and TTFT are 10 ms and 100 ms."""
    run = SimpleNamespace(
        framework="vLLM 0.10", group="g", measured={"tpot_s": 0.01, "ttft_s": 0.1}
    )
    return peers.Row(run=run, call={}, theirs=theirs, ours=ours)


def answer(tpot_s: float, ttft_s: float, seconds: float = 1.0) -> dict[str, float]:
    return {"tpot_s": tpot_s, "ttft_s": ttft_s, "seconds": seconds}


def test_answers_are_kept_one_by_one_until_the_peer_ends(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "WORKER", ANSWERS_TWICE)
    calls = [{"isl": 1000}, {"isl": 2000}, {"isl": 3000}]
    kept: dict[str, Any] = {"an earlier call": {"problem": "none"}}
    peers.ask(sys.executable, calls, kept, 60.0)
    assert json.loads(peers.KEPT.read_text()) == kept
    assert [kept[peers.key_of(call)]["tpot_s"] for call in calls[:2]] == [0.01, 0.02]
    assert peers.key_of(calls[2]) not in kept


def test_no_call_is_made_without_time(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "WORKER", ANSWERS_TWICE)
    kept: dict[str, Any] = {}
    peers.ask(sys.executable, [{"isl": 1000}], kept, -1.0)
    assert not kept


def test_equal_calls_have_one_key(peers: ModuleType) -> None:
    assert peers.key_of({"isl": 1, "osl": 2}) == peers.key_of({"osl": 2, "isl": 1})
    assert peers.key_of({"isl": 1}) != peers.key_of({"isl": 2})


def test_errors_are_factors_either_way(peers: ModuleType) -> None:
    assert peers.off(2.0, 1.0) == pytest.approx(1.0)
    assert peers.off(0.5, 1.0) == pytest.approx(1.0)
    assert peers.off(1.0, 1.0) == 0


def test_the_summary_counts_only_rows_that_both_answer(peers: ModuleType) -> None:
    rows = [
        row(peers, answer(0.011, 0.1, 0.1), answer(0.02, 0.1, 5.0)),
        row(peers, answer(0.012, 0.2, 0.2), answer(0.01, 0.4, 6.0)),
        row(peers, answer(0.013, 0.3, 0.3), answer(0.05, 0.1, 7.0)),
        row(peers, {"problem": "does not fit", "seconds": 0.1}, answer(0.9, 0.9)),
        row(peers, answer(0.9, 0.9), {"problem": "no table", "seconds": 1.0}),
        row(peers, answer(0.9, 0.9), None),
    ]
    result = peers.summary(rows)
    assert (result["asked"], result["both"]) == (6, 3)
    assert (result["ours_answers"], result["theirs_answers"]) == (5, 4)
    assert result["ours_tpot_s"] == pytest.approx(0.2)
    assert result["theirs_tpot_s"] == pytest.approx(1.0)
    assert result["ours_ttft_s"] == pytest.approx(1.0)
    assert result["theirs_ttft_s"] == pytest.approx(0.0)
    assert result["nearer_tpot_s"] == pytest.approx(2 / 3)
    assert result["nearer_ttft_s"] == pytest.approx(1 / 3)
    assert (result["ours_seconds"], result["theirs_seconds"]) == (0.2, 6.0)


def test_a_table_of_no_common_row_has_counts_alone(peers: ModuleType) -> None:
    table = peers.table({"vllm": peers.summary([row(peers, answer(1, 1), None)])})
    assert table.splitlines()[-1].split("|")[1:-1] == [" vllm ", " 1 ", " 0 "]


def test_calls_state_the_row(peers: ModuleType) -> None:
    pairs = peers.calls()
    assert len(pairs) > 250
    systems = {call["system_name"] for _, call in pairs}
    assert systems == {"h100_sxm", "h200_sxm", "b200_sxm", "b300_sxm"}
    for run, call in pairs:
        assert call["tp_size"] * call["pp_size"] * call["attention_dp_size"] * run.mesh.data == (
            run.system.n_chips
        )
        if run.config.is_moe:
            ranks = call["tp_size"] * call["attention_dp_size"]
            assert call["moe_tp_size"] * call["moe_ep_size"] == ranks


def test_without_the_peer_the_script_says_so(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["peers.py", "--python", "false"])
    peers.main()
    *said, document = capsys.readouterr().out.splitlines()
    assert said == ["skipped: false has no aiconfigurator; name its --python."]
    assert json.loads(document) == {"skipped": True}
