"""Programs of one name in the trace of a CPU, which numbers them in another way than its events."""

from __future__ import annotations

from typing import Any

from shardwise.profile.devices import cpu_program_names
from shardwise.profile.programs import Program, ProgramOperation, Programs


def program(*names: str) -> Program:
    dot = ProgramOperation(opcode="dot", opcodes=frozenset({"dot"}), target="", op_name="")
    return Program(operations=dict.fromkeys(names, dot), content=b"")


def ran(compiled: dict[str, Program], *names: str) -> str:
    """The program of events that have the number 1."""
    by_name = {name: [each] for name, each in compiled.items()}
    programs = Programs({"jit_step": list(compiled.values()), **by_name})
    stats: list[dict[str, Any]] = [
        {"hlo_module": "jit_step", "program_id": 1, "hlo_op": name} for name in names
    ]
    events = [("thread", None, each) for each in stats]
    return cpu_program_names(events, programs)["jit_step", 1]


def test_a_program_is_known_by_its_operations() -> None:
    compiled = {"jit_step(1)": program("add.1"), "jit_step(2)": program("add.1", "dot.2")}
    assert ran(compiled, "add.1", "dot.2") == "jit_step(2)"


def test_programs_with_the_same_operations_are_not_told_apart() -> None:
    compiled = {"jit_step(1)": program("add.1"), "jit_step(2)": program("add.1", "dot.2")}
    assert ran(compiled, "add.1") == "jit_step"
    assert ran(compiled, "convert.3") == "jit_step"
