"""Protocol buffers of traces and compiled programs, from descriptors of the fields that are read.

The library of protocol buffers parses them. Other fields are skipped.
"""

from __future__ import annotations

from functools import cache
from typing import Any

# Message -> field -> (number, type); a type ending in * is repeated. From tsl's xplane.proto and
# XLA's hlo.proto.
MESSAGES = {
    "XSpace": {"planes": (1, "XPlane*")},
    "XPlane": {"name": (2, "string"), "event_metadata": (4, "Entry*")},
    "Entry": {"key": (1, "int64"), "value": (2, "XEventMetadata")},
    "XEventMetadata": {"name": (2, "string"), "stats": (5, "XStat*")},
    "XStat": {"bytes_value": (6, "bytes")},
    "HloProto": {"hlo_module": (1, "HloModule"), "buffer_assignment": (3, "BufferAssignment")},
    "HloBytes": {"hlo_module": (1, "bytes")},
    "HloModule": {
        "name": (1, "string"),
        "computations": (3, "Computation*"),
        "entry_computation_id": (6, "int64"),
        "schedule": (7, "Schedule"),
        "sources": (17, "StackFrames"),
    },
    "Schedule": {"sequences": (1, "ScheduleEntry*")},
    "ScheduleEntry": {"key": (1, "int64"), "value": (2, "Sequence")},
    "Sequence": {"instruction_ids": (1, "int64*")},
    "StackFrames": {
        "file_names": (1, "string*"),
        "file_locations": (3, "FileLocation*"),
        "stack_frames": (4, "StackFrame*"),
    },
    "FileLocation": {"file_name_id": (1, "int64"), "line": (3, "int64")},
    "StackFrame": {"file_location_id": (1, "int64")},
    "Computation": {
        "instructions": (2, "Instruction*"),
        "id": (5, "int64"),
        "root_id": (6, "int64"),
    },
    "Instruction": {
        "name": (1, "string"),
        "opcode": (2, "string"),
        "metadata": (7, "OpMetadata"),
        "custom_call_target": (28, "string"),
        "id": (35, "int64"),
        "tuple_index": (13, "int64"),
        "operand_ids": (36, "int64*"),
        "called": (38, "int64*"),
        "backend_config": (43, "bytes"),
    },
    "OpMetadata": {
        "op_name": (2, "string"),
        "source_file": (3, "string"),
        "source_line": (4, "int64"),
        "stack_frame_id": (15, "int64"),
    },
    "BufferAssignment": {
        "logical_buffers": (1, "LogicalBuffer*"),
        "buffer_allocations": (3, "BufferAllocation*"),
        "heap_simulator_traces": (4, "HeapTrace*"),
    },
    "LogicalBuffer": {"id": (1, "int64"), "size": (2, "int64"), "color": (4, "int64")},
    "BufferAllocation": {
        "size": (2, "int64"),
        "is_thread_local": (3, "bool"),
        "is_entry_computation_parameter": (5, "bool"),
        "maybe_live_out": (7, "bool"),
        "color": (8, "int64"),
    },
    "HeapTrace": {"events": (1, "HeapEvent*")},
    "HeapEvent": {
        "kind": (1, "int64"),
        "buffer_id": (2, "int64"),
        "instruction_name": (4, "string"),
        "share_with_canonical_id": (5, "int64"),
    },
}
TYPES = {"int64": 3, "bool": 8, "string": 9, "message": 11, "bytes": 12}  # of FieldDescriptorProto
OPTIONAL, REPEATED = 1, 3  # labels of FieldDescriptorProto


@cache
def message_types() -> dict[str, Any]:
    """The classes of MESSAGES.

    Raises:
        ImportError: the library of protocol buffers is not installed.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name="shardwise_trace.proto", package="shardwise", syntax="proto3"
    )
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind) in fields.items():
            label = REPEATED if kind.endswith("*") else OPTIONAL
            base = kind.rstrip("*")
            described = message.field.add(name=field, number=number, label=label)
            described.type = TYPES.get(base, TYPES["message"])
            if base not in TYPES:
                described.type_name = f".shardwise.{base}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    types = {}
    for name in MESSAGES:
        descriptor = pool.FindMessageTypeByName(f"shardwise.{name}")
        types[name] = message_factory.GetMessageClass(descriptor)
    return types
