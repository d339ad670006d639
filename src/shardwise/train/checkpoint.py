"""Checkpoints: written asynchronously by orbax, restored onto any mesh, verified when loaded.

A checkpoint is a folder whose name is the number of completed steps. It contains the sharded arrays
and a JSON document (`about`) with the fingerprint of every array and the identity of the data. The
folder gets its final name when it is complete; only then are older checkpoints removed.
"""

from __future__ import annotations

import logging
import shutil
import sys
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax

from shardwise.errors import BadFile, BadInput, MissingExtra
from shardwise.runtime.processes.consensus import all_agree
from shardwise.runtime.weights.descriptions import Tree
from shardwise.train.fingerprint import fingerprints
from shardwise.train.requirements import INSTALL_COMMAND
from shardwise.train.state import zero_residuals
from shardwise.train.writable import ensure_writable

# Starts of errors that background tasks of orbax raise again after a failure was reported.
REPEATED_ERRORS = ("Event loop is closed", "Encountered error while reading array")
RESIDUALS = "lost"  # key in the state of the residuals of int8 gradient sums
RESIDUAL_PATH = f"{RESIDUALS}/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """A state read from a checkpoint.

    Args:
        step: number of completed steps.
        about: the JSON document of the checkpoint, without the fingerprints.
        residuals_reset: whether the residuals of int8 gradient sums start at 0, because the saved
            ones belong to another layout.
    """

    step: int
    state: Tree
    about: dict[str, Any]
    residuals_reset: bool = False


class _DamagedCheckpoint(Exception):
    """The files of a checkpoint differ from what was saved."""


class Checkpoints:
    """Reader and writer of the checkpoints in a folder.

    Args:
        folder: the folder; created if missing.
        on_note: receives messages about failures that do not stop the run.
        max_to_keep: number of checkpoints to keep; older ones are removed.

    Raises:
        BadFile: the folder cannot be written.
        MissingExtra: orbax is not installed.
    """

    def __init__(self, folder: str, on_note: Callable[[str], None], max_to_keep: int = 2) -> None:
        try:
            import orbax.checkpoint as orbax
        except ImportError:
            raise MissingExtra(
                f"checkpoints need orbax, which is missing: {INSTALL_COMMAND}"
            ) from None
        self.folder = Path(folder).absolute()
        self.on_note = on_note
        ensure_writable(self.folder, "checkpoints")
        # Failures are reported by `on_note`; orbax would also write tracebacks to stderr.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._previous_hook = sys.unraisablehook
        sys.unraisablehook = _without_repeated_errors(sys.unraisablehook)
        self._orbax = orbax
        options = orbax.CheckpointManagerOptions(
            max_to_keep=max_to_keep, cleanup_tmp_directories=True
        )
        self._manager = orbax.CheckpointManager(self.folder, options=options)
        self._writing: int | None = None

    @property
    def steps(self) -> list[int]:
        """Steps of the complete checkpoints, ascending."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Tree, about: dict[str, Any]) -> None:
        """Start writing a checkpoint in the background, once the previous one is complete.

        A failure is reported by `on_note`.

        Args:
            step: number of completed steps.
            state: the arrays, in the portable form of `PortableState`.
            about: values for the JSON document.
        """
        self.wait()
        args = self._orbax.args
        document = {**about, "fingerprints": fingerprints(state)}
        items = {name: args.StandardSave(tree) for name, tree in _checkpoint_items(state).items()}
        try:
            self._writing = step
            composite = args.Composite(**items, about=args.JsonSave(document))
            if not self._manager.save(step, args=composite):
                raise ValueError("the folder has a later one")
        except (OSError, ValueError, RuntimeError) as error:
            self._report_failure(error)

    def wait(self) -> bool:
        """Wait for the checkpoint that is being written; return whether it was written."""
        if self._writing is None:
            return True
        try:
            self._manager.wait_until_finished()
        except Exception as error:  # threads of orbax and tensorstore raise many types
            self._report_failure(error)
            return False
        self._writing = None
        return True

    def _report_failure(self, error: Exception) -> None:
        earlier = [step for step in self.steps if step != self._writing]
        fallback = "there is no earlier checkpoint"
        if earlier:
            fallback = f"the checkpoint of step {max(earlier)} is complete"
        self.on_note(
            f"the checkpoint of step {self._writing} was not written: {_cause(error)}; {fallback}."
        )
        if jax.process_index() == 0:  # the disk may be full: remove the incomplete files
            for partial in self.folder.glob(f"{self._writing}.orbax-checkpoint-tmp*"):
                shutil.rmtree(partial, ignore_errors=True)
        self._writing = None

    def restore(self, shapes: Tree, identity: dict[str, Any]) -> Restored | None:
        """Read the newest intact checkpoint; return None if there is no checkpoint.

        Args:
            shapes: shapes, dtypes and shardings of the arrays to return.
            identity: `DataOrder.identity`; has to equal the saved one.

        Raises:
            BadInput: the checkpoint is of another model or optimizer, or of data in another order.
            BadFile: all checkpoints in the folder are damaged.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps):
            try:
                restored = self._read_verified(step, shapes, identity)
            except _DamagedCheckpoint as error:
                damaged[step] = f"checkpoint {step} in {self.folder} is damaged: {error}."
                self.on_note(damaged[step])
                continue
            self._rename_damaged(damaged)
            return restored
        if damaged:
            advice = "No checkpoint is intact: name another folder to start from step 1."
            raise BadFile(*damaged.values(), advice)
        return None

    def _rename_damaged(self, steps: Collection[int]) -> None:
        """Rename damaged checkpoints: while they exist, orbax refuses to write earlier steps."""
        if not steps:
            return
        if jax.process_index() == 0:
            for step in steps:
                renamed = self.folder / f"damaged-{step}-{time.time_ns()}"
                (self.folder / str(step)).rename(renamed)
                self.on_note(f"checkpoint {step} was renamed to {renamed.name}.")
        all_agree(True)  # a barrier: all processes wait until process 0 has renamed them
        self._manager.reload()

    def _read_verified(self, step: int, shapes: Tree, identity: dict[str, Any]) -> Restored:
        """Read a checkpoint and verify its fingerprints in all processes.

        Raises:
            BadInput: see `restore`.
            _DamagedCheckpoint: a process cannot read the checkpoint, or has read other bits than
                were saved.
        """
        problem = ""
        restored = None
        try:
            restored, saved = self._read(step, shapes, identity)
        except BadInput:
            raise
        except Exception as error:  # orbax raises many types for damaged files
            problem = _cause(error)
        if not all_agree(restored is not None) or restored is None:
            raise _DamagedCheckpoint(problem or "another process cannot read it")
        bits = fingerprints(restored.state)
        changed = [name for name, number in bits.items() if saved[name] != number]
        if not all_agree(not changed):
            array = "an array of another process"
            if changed:
                array = changed[0]
            raise _DamagedCheckpoint(f"the bits of {array} differ from those that were saved")
        if restored.residuals_reset:
            restored.state[RESIDUALS] = zero_residuals(shapes)
        return restored

    def _read(
        self, step: int, shapes: Tree, identity: dict[str, Any]
    ) -> tuple[Restored, dict[str, int]]:
        """Read a checkpoint; return it, and the fingerprints saved with it, not yet compared."""
        args = self._orbax.args
        document = self._manager.restore(step, args=args.Composite(about=args.JsonRestore()))
        about: dict[str, Any] = document["about"]
        saved = about.pop("fingerprints")
        self._check_match(step, shapes, saved, identity, about)
        items = _checkpoint_items(shapes)
        reset = RESIDUALS in items and not _residuals_match(about["arrays"], shapes)
        if reset:
            del items[RESIDUALS]
        requests = {name: args.StandardRestore(tree) for name, tree in items.items()}
        trees = self._manager.restore(step, args=args.Composite(**requests))
        state: Tree = dict(trees["state"])
        if RESIDUALS in requests:
            state[RESIDUALS] = trees[RESIDUALS]
        return Restored(step=step, state=state, about=about, residuals_reset=reset), saved

    def _check_match(
        self,
        step: int,
        shapes: Tree,
        saved: dict[str, int],
        identity: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        """Check that a checkpoint is of this model, this optimizer and this order of data.

        Args:
            step: number of completed steps.
            shapes: the expected arrays.
            saved: path of each saved array -> its fingerprint.
            identity: the expected identity of the data.
            about: the JSON document of the checkpoint.

        Raises:
            BadInput: the checkpoint is of something else.
            _DamagedCheckpoint: the document has no fingerprint of some array.
        """
        where = f"checkpoint {step} in {self.folder}"
        stored = _without_residuals(about["arrays"])
        expected = _without_residuals(array_types(shapes))
        in_one_only = sorted(set(stored) ^ set(expected))
        if in_one_only:
            raise BadInput(
                f"{where} is of another model or optimizer: {len(in_one_only)} arrays are only in "
                f"one of the two, such as {in_one_only[0]}."
            )
        for name, array_type in expected.items():
            if stored[name] != array_type:
                raise BadInput(
                    f"{where}: {name} is {stored[name]} there and {array_type} in the plan."
                )
        if set(_without_residuals(saved)) != set(expected):
            raise _DamagedCheckpoint("its document does not list all arrays")
        for key, value in identity.items():
            stored_value = about["order"].get(key)
            if stored_value != value:
                raise BadInput(
                    f"{where} was trained on data in another order: {key} is "
                    f"{_shortened(stored_value)} there and {_shortened(value)} here."
                )

    def close(self) -> bool:
        """Wait for orbax and close it; return whether the last checkpoint is complete."""
        complete = self.wait()
        try:
            self._manager.close()
        except Exception as error:  # orbax raises the error of a failed checkpoint again
            if complete:
                self.on_note(f"{self.folder}: {_cause(error)}.")
        sys.unraisablehook = self._previous_hook
        return complete


def _without_repeated_errors(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Wrap `sys.unraisablehook` to ignore errors that start with `REPEATED_ERRORS`."""

    def filtered(unraisable: Any) -> None:
        if not str(unraisable.exc_value).startswith(REPEATED_ERRORS):
            hook(unraisable)

    return filtered


def array_types(shapes: Tree) -> dict[str, str]:
    """Map the path of each array in the tree to its dtype and shape, such as `float32[2, 3]`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{x.dtype}{list(x.shape)}"
        for path, x in jax.tree.leaves_with_path(shapes)
    }


def _checkpoint_items(state: Tree) -> dict[str, Tree]:
    """Divide a state into the items of a checkpoint.

    The residuals are a separate item, which a run in another layout does not read.
    """
    portable = {name: tree for name, tree in state.items() if name != RESIDUALS}
    if RESIDUALS in state:
        return {"state": portable, RESIDUALS: state[RESIDUALS]}
    return {"state": portable}


def _without_residuals(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arrays.items() if not name.startswith(RESIDUAL_PATH)}


def _residuals_match(arrays: dict[str, str], shapes: Tree) -> bool:
    stored = {name: value for name, value in arrays.items() if name.startswith(RESIDUAL_PATH)}
    return stored == array_types({RESIDUALS: shapes[RESIDUALS]})


def _cause(error: Exception) -> str:
    """Return the first line of an error, without the file locations that tensorstore appends."""
    text = str(error).partition("\n")[0] or type(error).__name__
    text = text.split(". See full")[0]
    if "Failed" in text:
        text = text.rsplit(": ", 1)[-1]
    return _shortened(text).rstrip(".")


def _shortened(value: Any) -> str:
    text = str(value)
    if len(text) <= 120:
        return text
    return text[:117] + "..."
