"""Options and arguments that several verbs share, each declared once.

An option of a single verb is declared in that verb, with the functions `option` and `argument`. An
option has the same meaning in every verb, except for a few that tests/unit/cli/test_options.py
lists.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from shardwise.estimate.serving.overhead import ENGINES
from shardwise.hardware.scale import SCALABLE
from shardwise.runtime.program import COLLECTIVES
from shardwise.vocabulary import (
    FRAMEWORK_ALIASES,
    FRAMEWORKS,
    KERNELS,
    NO_KERNELS,
    OPTIONAL_OFFLOADS,
    OPTIONAL_OVERLAPS,
    REMAT_WORDS,
)
from shardwise.workload import OPTIMIZER_MOMENTS, PRECISIONS


def option(group: str, usage: str, text: str) -> Any:
    """Declare an option in the form that its help line shows.

    Args:
        group: the title under which the help lists it.
        usage: its names and, unless it is a flag, its metavar: `-o, --output FILE`.
        text: its description in the help.
    """
    words = usage.split()
    names = [word.rstrip(",") for word in words if word.startswith("-")]
    metavar = " ".join(words[len(names) :]) or None
    return typer.Option(*names, metavar=metavar, help=text, rich_help_panel=group)


def argument(metavar: str, text: str) -> Any:
    """Declare a positional argument, with its description in the help."""
    return typer.Argument(metavar=metavar, help=text)


workload = partial(option, "Workload")
strategy = partial(option, "Strategy")
rates = partial(option, "Rates")
output = partial(option, "Output")
hosts = partial(option, "Multiple hosts")

# Arguments
Model = Annotated[str, argument("MODEL", "a preset (shardwise models), or a config.json")]
Machine = Annotated[str, argument("HARDWARE", "a chip with its size: v5p:16x20x28, h100:64")]
MachineOrChip = Annotated[
    str, argument("HARDWARE", "v5e:4x4, h200:16; v5e: the best of its sizes; any, or v5e,h100")
]
MachineOrAny = Annotated[
    str, argument("HARDWARE", "v5p:16x20x28, h100:64; any, or h100,v5p: the best machine of all")
]
Machines = Annotated[str, argument("HARDWARE", "one or more: h100:64-1024*2, v5e:4x4,v5p:4x4x4")]
PlanOrModel = Annotated[str, argument("PLAN.json|MODEL", "a saved plan, or a model")]
MachineOfModel = Annotated[
    str, argument("[HARDWARE]", "the machine for a model: v5p:16x20x28, h100:64")
]

# The workload
Training = Annotated[bool, workload("--train", "the workload is training")]
Serving = Annotated[bool, workload("--serve", "the workload is serving")]

TokenFolders = Annotated[
    str,
    workload("--data DIR[=W],...", "tokens, by shardwise data tokenize; W: their weights"),
]
GlobalBatch = Annotated[str, workload("--batch NxT", "global batch, sequences x tokens: 1120x4096")]
TrainingTokens = Annotated[str, workload("--tokens N", "tokens of the whole run: 15T")]
TrainingDtype = Annotated[str, workload("--dtype DTYPE", "dtype of the matrix products: bf16, fp8")]
Precision = Annotated[
    str,
    workload(
        "--precision WORD",
        f"dtypes of the training state: {', '.join(PRECISIONS)}  [default: from --dtype]",
    ),
]
MtpLayers = Annotated[
    str, workload("--mtp N", "layers of multi-token prediction after the model  [default: 0]")
]
Optimizer = Annotated[str, workload("--optimizer NAME", ", ".join(OPTIMIZER_MOMENTS))]
ReductionDtype = Annotated[
    str, workload("--reduce DTYPE", "dtype in which gradients are reduced: int8")
]
Collectives = Annotated[
    str,
    workload(
        "--collectives WORD",
        f"who chooses the collectives: {' or '.join(COLLECTIVES)} (XLA's partitioner)",
    ),
]

# Processes of a run
Coordinator = Annotated[str, hosts("--coordinator HOST:PORT", "address of the first process")]
Processes = Annotated[int | None, hosts("--processes N", "number of processes")]
Process = Annotated[int | None, hosts("--process I", "index of this process")]

SequenceCount = Annotated[str, workload("--batch N", "sequences in a batch")]
PromptLength = Annotated[str, workload("--prompt N", "tokens in a prompt: 2048, or 512-4k")]
OutputLength = Annotated[
    str, workload("--output N", "tokens generated for a prompt: 512, or 64-1k")
]
CONTEXT = "8192"  # tokens in a sequence of serving if no length is given
ContextLength = Annotated[
    str,
    workload("--context N", f"tokens in a sequence, prompt and output  [default: {CONTEXT}]"),
]
SequenceLength = Annotated[str, workload("--seq N", "tokens in a sequence")]
WeightDtype = Annotated[
    str, workload("--dtype DTYPE", "dtype of the weights: bf16, fp8, int8, int4")
]
WeightDtypes = Annotated[
    str,
    workload("--dtype DTYPE,...", "dtype of the weights: bf16, fp8, int8, int4"),
]
KvDtype = Annotated[
    str, workload("--kv-dtype DTYPE", "dtype of the KV cache  [default: that of the weights]")
]
ComputeDtype = Annotated[
    str,
    workload("--compute DTYPE", "dtype of the matrix products  [default: from the operands]"),
]
RequestRate = Annotated[str, workload("--rate N/s", "rate at which requests arrive: 20/s, 600/min")]
UserCount = Annotated[
    str, workload("--users N", "instead of --rate: users who each wait for the answer")
]
TtftBound = Annotated[str, workload("--ttft TIME", "bound on the time to the first token: 500ms")]
TpotBound = Annotated[str, workload("--tpot TIME", "bound on the time per further token: 30ms")]
CachedShare = Annotated[
    str, workload("--cached SHARE", "share of a prompt that is in a prefix cache: 50%")
]
DraftedTokens = Annotated[
    str, workload("--draft K", "tokens that a small model drafts for each pass")
]
AcceptedShare = Annotated[
    str, workload("--acceptance SHARE", "share of drafted tokens accepted  [default: 0.7]")
]
ServingEngine = Annotated[
    str,
    workload("--engine NAME", f"serving software: {', '.join(ENGINES)}  [default: unknown]"),
]

# The strategy
WholeStrategy = Annotated[
    str, strategy("--mesh ROLE=N,...", "evaluate this strategy: tensor=8,fsdp=32")
]
MeshAxes = Annotated[str, strategy("--mesh AXIS=N,...", "the mesh axes: X=4,Y=4")]
FixedSettings = Annotated[
    str, strategy("--fix NAME=VALUE,...", "search with these fixed: tensor=8,pipe=4")
]
SizeLimits = Annotated[
    str, strategy("--max ROLE=N,...", "search up to these sizes: tensor=8,pipe=4")
]
AnyLayout = Annotated[
    bool, strategy("--any-layout", "search layouts, too, that the trainer does not run")
]
RematPolicy = Annotated[
    str, strategy("--remat POLICY", f"rematerialization: {', '.join(REMAT_WORDS)}")
]
ChosenOverlap = Annotated[
    str,
    strategy("--overlap WORD,...", f"also overlapped with compute: {', '.join(OPTIONAL_OVERLAPS)}"),
]
OffloadedState = Annotated[
    str, strategy("--offload WORD,...", f"in host memory: {', '.join(OPTIONAL_OFFLOADS)}")
]
Disaggregate = Annotated[
    bool | None,
    strategy(
        "--disaggregate/--no-disaggregate",
        "separate engines for prefill  [default: what is better within the bounds]",
    ),
]
TensorAxis = Annotated[str, strategy("--tensor N", "size of the tensor axis")]
ExpertAxis = Annotated[str, strategy("--expert N", "size of the expert axis")]
PipeAxis = Annotated[str, strategy("--pipe N", "size of the pipe axis: pipeline stages")]
FsdpAxis = Annotated[str, strategy("--fsdp N", "size of the fsdp axis")]
DataAxis = Annotated[str, strategy("--data N", "size of the data axis: replicas")]
ReplicaAxis = Annotated[str, strategy("--replicas, --data N", "size of the data axis: replicas")]

# The hardware
TargetHardware = Annotated[str, workload("--on HARDWARE", "the chip or machine: v5e, v5e:4x4")]
TrainingFramework = Annotated[
    str,
    rates(
        "--framework NAME",
        f"the software that runs it: {', '.join((*FRAMEWORKS, *FRAMEWORK_ALIASES))}",
    ),
]
KernelSettings = Annotated[
    str,
    rates(
        "--kernels WORD,...",
        f"of it: {', '.join(KERNELS)}, {NO_KERNELS}  [default: those of its published runs]",
    ),
]
PeakRates = Annotated[bool, rates("--peak", "assume peak rates, as the book does")]

# The output
WhatIfFactors = Annotated[
    str, output("--what-if NAMExF,...", f'on other hardware: "ici x0.5"; {", ".join(SCALABLE)}')
]
PlanCount = Annotated[str, output("--top N", "list the N best")]
OutputFile = Annotated[str, output("-o, --output FILE", "save the result to a file")]
ServingOutputFile = Annotated[str, output("-o FILE", "save the result to a file")]
TableFormat = Annotated[str, output("-o, --output FORMAT", "print as md, csv or jsonl")]
ServingTableFormat = Annotated[str, output("-o FORMAT", "print as md, csv or jsonl")]
ProfileFolder = Annotated[
    str, output("--profile DIR", "trace some steps; shardwise profile DIR says where time went")
]
Verbose = Annotated[bool, output("-v, --verbose", "show all details")]
Json = Annotated[bool, output("--json", "print one JSON document")]
