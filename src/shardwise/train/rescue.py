"""The export at the end of a run, whose trained state is kept if the export fails."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from shardwise.errors import BadFile, CheckFailed
from shardwise.train import pretrained
from shardwise.train.run_folder import RunRecord, write_record

if TYPE_CHECKING:
    from shardwise.train.loop import Loop


def export_or_save(export: str, loop: Loop, record: RunRecord, last_checkpoint: int | None) -> str:
    """Export the weights of a run that has ended; return a message.

    Args:
        export: folder for the weights.
        record: how the run was started.
        last_checkpoint: step of the last complete checkpoint; None without one.

    Raises:
        CheckFailed: the weights were not written; says where the state is, and how to export it.
    """
    try:
        return pretrained.export_weights(
            export, loop.train_step, loop.state, record.start, loop.order.sets[0]
        )
    except BadFile as error:
        folder = ""
        if loop.checkpoints is not None and last_checkpoint == loop.step:
            folder = str(loop.checkpoints.folder)
        elif loop.checkpoints is None:
            folder = _save_elsewhere(Path(export), loop, record)
        advice = f"the state of step {loop.step:,} could not be saved either."
        if folder:
            advice = (
                f"the state of step {loop.step:,} is in {folder}. To export it later: shardwise "
                f"train {folder}/plan.json --checkpoint {folder} --resume --export FOLDER."
            )
        raise CheckFailed(*error.problems, advice) from None


def _save_elsewhere(export: Path, loop: Loop, record: RunRecord) -> str:
    """Save the state of a run without checkpoints; return the folder, empty if no disk has room."""
    import jax

    from shardwise.train.checkpoint import Checkpoints

    if jax.process_count() > 1:  # all of them would have to save, and only one has failed
        return ""
    for parent in (export.absolute().parent, Path.cwd(), Path(tempfile.gettempdir())):
        try:
            folder = tempfile.mkdtemp(prefix=f"{export.name}-state-", dir=parent)
            write_record(folder, record, loop.plan)
            loop.checkpoints = Checkpoints(folder, loop.hooks.on_note)
        except (OSError, BadFile):
            continue
        loop.save()
        if loop.checkpoints.close():
            return folder
    return ""
