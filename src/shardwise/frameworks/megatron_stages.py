"""Layers of pipeline stages in the fields of Megatron Core 0.16, where they need not be equal.

A stage has several chunks under an interleaved schedule. If the layers do not fill all chunks of a
plan, its last chunks have less: one layer less is what Megatron's `account_for_loss` says, two
leave out the first layer instead of one of the last, and more are written out as
`pipeline_model_parallel_layout`: letters for embedding, layers, layers of multi-token prediction
(MTP) and loss, chunk by chunk.
"""

from __future__ import annotations

import re
from typing import Any

from shardwise.errors import BadFile
from shardwise.frameworks.exported import TrainingRun
from shardwise.strategy.stages import stages

# Whether the head, and the embedding, take the place of a layer in their stage.
ENDS = ("account_for_loss_in_pipeline_split", "account_for_embedding_in_pipeline_split")
LAYOUT = "pipeline_model_parallel_layout"
MTP = "mtp_num_layers"  # layers of multi-token prediction, which the last chunk has
MAX_LETTERS = 100_000  # of a layout that is written out, far above those of any model


def write(run: TrainingRun) -> dict[str, Any]:
    """Values of the fields, without those at their default."""
    layout = run.layout
    n_layers, pipe = run.plan.model.n_layers, layout.mesh.pipe
    last = last_stage(n_layers, pipe)
    if layout.virtual == 1 and last > 0:
        return {"num_layers_in_last_pipeline_stage": last} if n_layers % pipe else {}
    spare = stages(n_layers, layout).spare
    if spare > len(ENDS):
        return {LAYOUT: written_out(n_layers, pipe * layout.virtual, run.job.mtp_layers)}
    chunks = {"virtual_pipeline_model_parallel_size": layout.virtual}
    return chunks | dict.fromkeys(ENDS[:spare], True)


def written_out(n_layers: int, n_chunks: int, mtp_layers: int = 0) -> str:
    """The layers of each chunk, as many as possible in each of the first ones.

    >>> written_out(36, 40), written_out(7, 4), written_out(7, 4, mtp_layers=1)
    ('Et|(t|)*35|||L', 'Ett|(tt|)*2tL', 'Ett|(tt|)*2tmL')
    """
    n_each = -(-n_layers // n_chunks)
    full, rest = divmod(n_layers, n_each)
    layers = "t" * n_each
    more = ["t" * rest, *[""] * (n_chunks - full - 1)]
    return f"E{layers}|({layers}|)*{full - 1}{'|'.join(more)}{'m' * mtp_layers}L"


def notes(run: TrainingRun) -> list[str]:
    """Which layers a framework leaves out of the chunks of a plan, where the plan has others."""
    layout = run.layout
    if layout.virtual == 1 or stages(run.plan.model.n_layers, layout).spare != len(ENDS):
        return []
    n_chunks = layout.mesh.pipe * layout.virtual
    return [
        f"{n_chunks:,} chunks have room for two layers more: here beside the embedding and beside "
        "the head, in the plan both at the end."
    ]


def read(layout: Any, pipe: int) -> tuple[int | None, list[str]]:
    """Chunks of a stage in a layout that is written out, None for one; and notes.

    Args:
        layout: the letters of a string, or a list with the layers of each chunk.
        pipe: stages.

    Raises:
        BadFile: the chunks are no multiple of the stages.
    """
    if isinstance(layout, str):
        chunks = [part.count("t") for part in _expanded(layout).split("|")]
    elif isinstance(layout, list) and all(isinstance(part, list) for part in layout):
        chunks = [sum("decoder" in str(layer) for layer in part) for part in layout]
    else:
        raise BadFile(f"{LAYOUT} is {layout!r}; it must be a string as Et|(t|)*6tL, or lists.")
    if len(chunks) % pipe:
        raise BadFile(
            f"{LAYOUT} has {len(chunks)} chunks; it needs a multiple of its {pipe} stages."
        )
    n_layers = sum(chunks)
    full = -(-n_layers // len(chunks))
    filled = [min(full, max(0, n_layers - full * i)) for i in range(len(chunks))]
    said = []
    if chunks != filled:
        said.append(f"{LAYOUT}: its chunks differ; the plan has {full} layers in all but the last.")
    virtual = len(chunks) // pipe
    return (virtual if virtual > 1 else None), said


def mtp_layers(layout: Any) -> int:
    """Layers of multi-token prediction in a layout that is written out; 0 without one.

    >>> mtp_layers("Et*4|(t*4|)*14tmL"), mtp_layers(None)
    (1, 0)
    """
    if isinstance(layout, str):
        return _expanded(layout).count("m")
    return str(layout or "").count("mtp")


def _expanded(text: str) -> str:
    """A layout with its repetitions written out: `(t|)*2` is `t|t|`.

    >>> _expanded("Et*2,|(tt|)*2tL")
    'Ett|tt|tt|tL'

    Raises:
        BadFile: it would be longer than that of any model.
    """
    text = re.sub(r"[,\s]", "", text)
    for repetition in (r"\(([^()]*)\)\*(\d+)", r"([A-Za-z])\*(\d+)"):
        if sum(int(n[-9:]) * len(part) for part, n in re.findall(repetition, text)) > MAX_LETTERS:
            raise BadFile(f"{LAYOUT} has more than {MAX_LETTERS:,} letters.")
        text = re.sub(repetition, lambda match: match[1] * int(match[2]), text)
    return text


def last_stage(n_layers: int, pipe: int) -> int:
    """Layers of the last stage of a plan, whose other stages are equal; 0 or less if none are left.

    >>> last_stage(61, 8)
    5
    """
    return n_layers - (pipe - 1) * -(-n_layers // pipe)
