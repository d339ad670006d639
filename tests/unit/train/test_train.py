"""Runs of a tiny model: equal on one device and on eight, before and after a break."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.runtime.training.optimizers import WHOLE_ARRAY
from tests.unit.train.command import printed

Found = dict[str, Any]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What `drive` printed of its short part."""
    result: Found = printed("drive", tmp_path_factory.mktemp("short"), "short")
    return result


@pytest.fixture(scope="module")
def longer(tmp_path_factory: pytest.TempPathFactory) -> Found:
    """What `drive` printed of its long part."""
    result: Found = printed("drive", tmp_path_factory.mktemp("long"), "long")
    return result


def test_eight_devices_train_like_one(found: Found) -> None:
    one, eight = found["one"], found["eight"]
    assert eight["failed"]["kind"] == one["failed"]["kind"] == "nothing"
    assert len(one["losses"]) == 4
    assert eight["losses"] == pytest.approx(one["losses"], rel=1e-5)
    assert one["losses"][-1] < one["losses"][0]


def test_the_norm_over_parts_is_that_of_the_whole(found: Found) -> None:
    assert found["eight"]["norms"] == pytest.approx(found["one"]["norms"], rel=1e-4)
    assert min(found["one"]["norms"]) > 0.5, "clipping has to matter for the losses to agree"


def test_a_run_that_goes_on_is_bit_identical(found: Found) -> None:
    assert found["again"]["run"] == {"first": 2, "done": 4}
    assert found["again"]["losses"] == found["eight"]["losses"][2:]
    assert found["bits"]["arrays"] > 20
    assert found["bits"]["equal"]


@pytest.mark.oracle
def test_state_in_host_memory_is_saved_and_gone_on_with(longer: Found) -> None:
    told, eight = longer["outside"], longer["eight"]
    assert told["whole"]["losses"] == eight["losses"]
    assert told["again"]["run"] == told["stages"]["run"] == {"first": 2, "done": 4}
    assert told["again"]["losses"] == eight["losses"][2:]
    assert told["bits"] == [True, True]
    assert told["stages"]["losses"] == pytest.approx(eight["losses"][2:], rel=1e-5)


@pytest.mark.oracle
def test_it_goes_on_with_collectives_that_the_compiler_chooses(longer: Found) -> None:
    told, one = longer["partitioned"], longer["one"]
    assert told["run"] == {"first": 2, "done": 4}
    assert told["losses"] == pytest.approx(one["losses"][2:], rel=1e-5)
    assert told["norms"] == pytest.approx(one["norms"][2:], rel=1e-4)


def test_it_goes_on_under_another_layout(found: Found) -> None:
    stages, back = found["stages"], found["back"]
    assert stages["run"] == {"first": 2, "done": 4}
    assert stages["losses"] == pytest.approx(found["one"]["losses"][2:], rel=1e-5)
    assert back["run"] == {"first": 3, "done": 4}
    assert back["losses"] == pytest.approx(found["one"]["losses"][3:], rel=1e-5)


def test_weights_are_published_and_started_from(found: Found) -> None:
    told = found["published"]
    assert told["out"]["failed"]["kind"] == told["again"]["failed"]["kind"] == "nothing"
    assert told["again"]["losses"][0] < told["out"]["losses"][0]
    assert told["same"]["bytes"] > 100_000
    assert told["same"]["equal"]
    assert told["config"] == [True, True]
    with_tokenizer = ["generation_config.json", "model.safetensors", "tokenizer.json"]
    assert told["files"] == [["config.json", *with_tokenizer]] * 2
    written = "weights, config.json, tokenizer.json and generation_config.json are in"
    assert written in told["out"]["notes"][-1]


def test_weights_are_published_over_those_that_were_started_from(found: Found) -> None:
    told = found["published"]
    assert told["over"]["failed"]["kind"] == "nothing"
    assert told["over"]["losses"] == told["again"]["losses"]
    assert told["same"]["over"]


def test_weights_of_another_model_are_refused(found: Found) -> None:
    told = found["published"]
    assert told["family"]["code"] == told["model"]["code"] == 2
    assert "Known families" in told["family"]["said"]
    assert "has another model" in told["model"]["said"]


def test_what_is_saved_is_not_gone_on_with_unasked_or_in_another_order(found: Found) -> None:
    assert found["unasked"]["code"] == 2
    assert "--resume" in found["unasked"]["said"]
    assert "data in another order: seed is 0 there and 1 here" in found["reordered"]["said"]


def test_a_sample_begins_as_asked(found: Found) -> None:
    assert found["eight"]["sample"].startswith("line")
    assert len(found["eight"]["sample"]) > len("line")


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("long", "the prompt of a sample has 1 to 15 tokens; this one has 16"),
        ("stages", "not available with context 1 and pipe 2"),
        ("compiler", "--collectives plan"),
    ],
)
def test_a_sample_that_cannot_be_drawn_is_refused_before_the_run(
    found: Found, way: str, said: str
) -> None:
    told = found["unsampled"][way]
    assert (told["failed"]["code"], told["losses"]) == (2, [])
    assert said in told["failed"]["said"]


def test_bad_steps_are_skipped_and_their_batch_is_recorded(found: Found) -> None:
    skip = found["ways"]["skip"]
    assert skip["failed"]["kind"] == "nothing"
    assert skip["bad"]
    assert len(skip["losses"]) == 8
    events = [line for line in skip["log"] if line.get("event") == "bad step"]
    assert [e["step"] for e in events] == skip["bad"]
    assert all(len(e["sequences"]) == 8 for e in events)
    assert len(skip["notes"]) == len(events)


@pytest.mark.oracle
def test_experts_without_room_drop_tokens(longer: Found) -> None:
    losses = {room: told["losses"] for room, told in longer["experts"].items()}
    assert losses["None"] == pytest.approx(losses["4.0"], abs=1e-6)  # four experts: room for all
    assert len({tuple(losses[room]) for room in ("4.0", "1.0", "0.01")}) == 3
    assert (
        "load-balancing loss of the model (coefficient 0.02)"
        in longer["experts"]["1.0"]["notes"][0]
    )


def test_a_bad_step_stops(found: Found) -> None:
    skip, stop = found["ways"]["skip"], found["ways"]["stop"]
    assert stop["failed"]["kind"] == "CheckFailed"
    assert stop["failed"]["code"] == 4
    assert f"step {skip['bad'][0]} is bad" in stop["failed"]["said"]
    assert "changed no weights" in stop["failed"]["said"]
    assert stop["losses"] == skip["losses"][: skip["bad"][0] + 1], "the one behind it ran too"


@pytest.mark.parametrize("what", ["gradient", "loss"])
def test_what_is_no_number_changes_nothing(found: Found, what: str) -> None:
    told = found["not_numbers"]
    assert told["norm"] == pytest.approx(5.0)
    assert all(x < 0 for x in told["first"])
    assert told[what] == {"updates": [0.0, 0.0], "counts": [1, 1], "usual": 2.0, "same": True}


def test_a_full_disk_is_told_and_the_last_checkpoint_stays(found: Found) -> None:
    saved = found["saved"]
    assert not saved["whole"]
    assert len(saved["full"]) == 1
    assert "step 3 was not written" in saved["full"][0]
    assert "step 2 is complete" in saved["full"][0]
    assert 2 in saved["after_full"]
    assert 3 not in saved["after_full"]


def test_a_damaged_checkpoint_is_seen_and_the_one_before_taken(found: Found) -> None:
    saved = found["saved"]
    damaged, aside = saved["damaged"]
    assert "checkpoint 4" in damaged
    assert "checkpoint 4 was renamed to damaged-4-" in aside
    assert saved["taken"] == 2
    assert saved["same"]


def test_behind_a_damaged_checkpoint_new_ones_are_written(found: Found) -> None:
    assert found["saved"]["after_damaged"] == [[3, 4], []]


@pytest.mark.parametrize("name", WHOLE_ARRAY)
@pytest.mark.oracle
def test_optimizers_of_whole_arrays_go_on_with_the_same_bits(longer: Found, name: str) -> None:
    told = longer[name]
    assert told["through"]["failed"]["kind"] == "nothing"
    assert told["again"]["losses"] == told["through"]["losses"][2:]
    assert told["equal"]


def test_a_checkpoint_of_another_model_is_refused(found: Found) -> None:
    assert found["saved"]["model"]["code"] == 2
    assert "1 arrays are only in one of the two, such as m" in found["saved"]["model"]["said"]


def test_a_folder_that_cannot_be_written(found: Found) -> None:
    assert found["saved"]["no_folder"]["kind"] == "BadFile"
    assert "cannot be written" in found["saved"]["no_folder"]["said"]


def test_plans_and_data_that_do_not_run_here(found: Found) -> None:
    there = found["elsewhere"]
    assert there["tpu"]["code"] == there["vocab"]["code"] == there["long"]["code"] == 2
    assert "v5e:2x2: 4 devices" in there["tpu"]["said"]
    assert "8 of a CPU" in there["tpu"]["said"]
    assert "cpu:8" in there["tpu"]["said"]
    assert "257" in there["vocab"]["said"]
    assert "--steps" in there["long"]["said"]
    assert there["filled"]["code"] == 2
    assert (
        "adafactor with padded vocabulary: the chips do not divide 261" in there["filled"]["said"]
    )
    assert there["capacity"]["code"] == 2
    assert "capacity applies to experts" in there["capacity"]["said"]
