"""When the operations of a CPU's trace ended."""

from __future__ import annotations

from shardwise.profile.devices import Event, ended_before_readers
from shardwise.profile.messages import message_types
from shardwise.profile.programs import Programs, parse_program
from tests.unit.profile import events
from tests.unit.profile.events import MODULE


def event(name: str, start_ns: float, end_ns: float, run: int = 1) -> Event:
    return events.event(name, start_ns, end_ns, run=run)


def compiled() -> Programs:
    """A dot whose result an add reads under another name, and an all-gather of something else."""
    proto = message_types()["HloProto"]()
    computation = proto.hlo_module.computations.add(id=1)
    for number, (name, opcode, operands) in enumerate(
        [
            ("dot.1", "dot", []),
            ("bitcast.1", "bitcast", [0]),
            ("all-gather.1", "all-gather", []),
            ("add.1", "add", [1, 2]),
        ]
    ):
        computation.instructions.add(id=number, name=name, opcode=opcode, operand_ids=operands)
    return Programs({MODULE: [parse_program(proto.SerializeToString())]})


def ends(*events: Event) -> list[float]:
    return [event.end_ns for event in ended_before_readers(list(events), compiled())]


def test_an_operation_has_ended_when_its_reader_starts() -> None:
    late = event("dot.1", 0, 100)
    assert ends(late, event("all-gather.1", 1, 50), event("add.1", 60, 90)) == [60, 50, 90]


def test_a_reader_of_another_execution_or_an_earlier_round_says_nothing() -> None:
    late = event("dot.1", 20, 100)
    assert ends(late, event("add.1", 60, 90, run=2), event("add.1", 10, 15)) == [100, 90, 15]


def test_an_end_before_the_reader_stays() -> None:
    assert ends(event("dot.1", 0, 30), event("add.1", 60, 90)) == [30, 90]
