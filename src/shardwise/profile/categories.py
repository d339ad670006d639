"""What kind of work an operation is, by the opcodes that it computes, or by its name alone."""

from __future__ import annotations

import re

from shardwise.check.hlo.forms import COLLECTIVES
from shardwise.check.hlo.scopes import scope
from shardwise.profile.programs import ProgramOperation

MATMUL = "matmul"
ATTENTION = "attention"
ELEMENTWISE = "elementwise"
COPY = "copy"
COMMUNICATION = "communication"
WAIT = "wait"  # of a collective, for the devices that come to it later
CALLBACK = "callback"  # Python that the program calls on the host
LOOP = "loop"
GAP = "gap"
HOST = "host"

WORK = (MATMUL, ATTENTION, ELEMENTWISE, COPY)  # of a device, which hides communication
CATEGORIES = (*WORK, COMMUNICATION, WAIT, CALLBACK, LOOP, GAP, HOST)

CONTROL = frozenset({"while", "conditional", "call"})
PRODUCTS = frozenset({"dot", "convolution"})
# How programs write a product of few rows, whose weights CPUs read faster so.
SUM_OF_PRODUCTS = frozenset({"multiply", "reduce"})
# Opcodes that move data or name it, and compute nothing.
MOVES = frozenset(
    {
        "copy", "copy-start", "copy-done", "transpose", "reshape", "bitcast",
        "bitcast-convert", "slice", "dynamic-slice", "dynamic-update-slice",
        "concatenate", "pad", "broadcast", "gather", "reverse", "convert", "parameter",
        "constant", "tuple", "get-tuple-element", "fusion", "iota", "async-start",
        "async-done", "async-update",
    }
)  # fmt: skip
ATTENTION_SCOPES = ("attn.core", "attn.scores", "attn.values", "attn.prompts", "attn.caches")

_PRODUCT_SCOPE = re.compile(
    r"attn\.(?:q|k|v|qkv|out)|(?:attn|mlp|moe)\.(?:\w+_)?(?:up|gate|down)|unembed"
)

_SUFFIX = re.compile(r"[.\d]*$")
# Of cuDNN's attention, two kernels of the backward pass have names of their own.
_ATTENTION_KERNEL = re.compile(r"attention|flash|fmha|splash|sdpa|dot_do_o|convert_dq", re.I)
_PRODUCT_KERNEL = re.compile(
    r"gemm|matmul|cublas|cutlass|nvjet|conv(?!ert)|(?<![a-z])dot(?![a-z])", re.I
)
_COLLECTIVE_NAME = re.compile("|".join([*COLLECTIVES, "nccl"]), re.I)
_CALLBACK_NAME = re.compile(r"callback", re.I)
_MOVE_NAME = re.compile(r"^(wrapped_)?(copy|transpose|memcpy|bitcast|slice|concatenate|pad)", re.I)


def kernel_category(kernel: str, name: str, operation: ProgramOperation) -> str:
    """The category of a call of a program: as its kernel says, else as the program does."""
    by_kernel = category(kernel, None)
    return category(name, operation) if by_kernel == ELEMENTWISE else by_kernel


def category(name: str, operation: ProgramOperation | None) -> str:
    """The category of an operation.

    Args:
        name: its name in the trace: `fusion.3`, `all-reduce-start.1`, a GPU kernel.
        operation: it in the compiled program; None if the trace does not hold the program.
    """
    if operation is None:
        return _by_name(name)
    if _CALLBACK_NAME.search(operation.target):
        return CALLBACK
    if any(opcode.startswith(COLLECTIVES) for opcode in operation.opcodes):
        return COMMUNICATION
    if operation.opcode in CONTROL:
        return LOOP
    if is_attention(operation.op_name, operation.target):
        return ATTENTION
    if operation.opcodes & PRODUCTS or _PRODUCT_KERNEL.search(operation.target):
        return MATMUL
    if operation.opcodes >= SUM_OF_PRODUCTS and is_product(operation.op_name):
        return MATMUL
    if operation.opcodes <= MOVES:
        return COPY
    if operation.opcode == "custom-call":
        return _by_name(operation.target)
    return ELEMENTWISE


def is_product(op_name: str) -> bool:
    """Whether the model has a product at a path of name scopes: `attn.q`, `mlp.up`, `unembed`."""
    return bool(_PRODUCT_SCOPE.fullmatch(scope(op_name)[0]))


def is_attention(op_name: str, target: str) -> bool:
    """Whether an operation is part of softmax(QK)V, by its name scopes or its kernel."""
    planned, _ = scope(op_name)
    if any(part in ATTENTION_SCOPES for part in planned.split("+")):
        return True
    return bool(_ATTENTION_KERNEL.search(target)) or "flash_attention" in op_name


def _by_name(name: str) -> str:
    if _CALLBACK_NAME.search(name):
        return CALLBACK
    if _COLLECTIVE_NAME.search(name):
        return COMMUNICATION
    if _SUFFIX.sub("", name) in CONTROL:
        return LOOP
    if _ATTENTION_KERNEL.search(name):
        return ATTENTION
    if _PRODUCT_KERNEL.search(name):
        return MATMUL
    if _MOVE_NAME.search(name):
        return COPY
    return ELEMENTWISE
