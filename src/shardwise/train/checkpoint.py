"""Checkpoints: written beside the training by orbax, taken back onto any mesh, verified on load.

One checkpoint is a folder named by its step: the arrays in shards, and a page with the fingerprints
of their bits and the order of the data. It gets its name when all of it is on disk, and the ones
before it are removed after that.
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
from shardwise.runtime.weights.descriptions import Tree
from shardwise.train.consensus import agreed
from shardwise.train.devices import INSTALL
from shardwise.train.fingerprint import fingerprints
from shardwise.train.state import nothing_lost
from shardwise.train.writable import writable

KEPT = 2
LATE = ("Event loop is closed", "Encountered error while reading array")  # begins of errors


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What a checkpoint holds.

    Args:
        step: steps that were done.
        about: what was saved beside the arrays.
        forgot: what sums of gradients had lost could not be taken back, and is 0.
    """

    step: int
    state: Tree
    about: dict[str, Any]
    forgot: bool = False


class _Damaged(Exception):
    """What lies there is not what was saved."""


class Checkpoints:
    """The checkpoints of a folder.

    Args:
        folder: made where it is missing.
        say: told what goes wrong and does not stop the run.

    Raises:
        BadFile: the folder cannot be written.
        MissingExtra: orbax is not installed.
    """

    def __init__(self, folder: str, say: Callable[[str], None], kept: int = KEPT) -> None:
        try:
            import orbax.checkpoint as orbax
        except ImportError:
            raise MissingExtra(f"checkpoints need orbax, which is missing: {INSTALL}") from None
        self.folder, self.say = Path(folder).absolute(), say
        writable(self.folder, "checkpoints")
        # What fails is told in words by `say`; orbax writes a page of calls to stderr beside it.
        for name in ("absl", "asyncio"):
            logging.getLogger(name).setLevel(logging.CRITICAL)
        self._hook, sys.unraisablehook = sys.unraisablehook, _without_late(sys.unraisablehook)
        self._orbax = orbax
        options = orbax.CheckpointManagerOptions(max_to_keep=kept, cleanup_tmp_directories=True)
        self._manager = orbax.CheckpointManager(self.folder, options=options)
        self._writing: int | None = None

    @property
    def steps(self) -> list[int]:
        """Steps of the checkpoints that are whole."""
        return sorted(self._manager.all_steps())

    def save(self, step: int, state: Tree, about: dict[str, Any]) -> None:
        """Begin to write a checkpoint; the one before is awaited. What fails is said."""
        self.wait()
        args = self._orbax.args
        page = {**about, "fingerprints": fingerprints(state)}
        parts = {name: args.StandardSave(tree) for name, tree in _parts(state).items()}
        try:
            self._writing = step
            composite = args.Composite(**parts, about=args.JsonSave(page))
            if not self._manager.save(step, args=composite):
                raise ValueError("the folder has a later one")
        except (OSError, ValueError, RuntimeError) as error:
            self._failed(error)

    def wait(self) -> bool:
        """Wait for what is being written; whether it is whole."""
        if self._writing is None:
            return True
        try:
            self._manager.wait_until_finished()
        except Exception as error:  # of threads of orbax and tensorstore: any kind
            self._failed(error)
            return False
        self._writing = None
        return True

    def _failed(self, error: Exception) -> None:
        last = max((s for s in self.steps if s != self._writing), default=None)
        good = "there is none before it" if last is None else f"the one of step {last} is whole"
        self.say(
            f"the checkpoint of step {self._writing} was not written: {_reason(error)}; {good}."
        )
        if jax.process_index() == 0:  # a full disk has room again
            for half in self.folder.glob(f"{self._writing}.orbax-checkpoint-tmp*"):
                shutil.rmtree(half, ignore_errors=True)
        self._writing = None

    def restore(self, shapes: Tree, identity: dict[str, Any]) -> Restored | None:
        """The newest checkpoint whose bits are those that were saved, laid out as `shapes`.

        Args:
            identity: of the data and its order, which must be the saved one.

        Returns:
            None where there is no checkpoint.

        Raises:
            BadInput: it is of another model, optimizer or order of data.
            BadFile: there are checkpoints, and none of them is whole.
        """
        damaged: dict[int, str] = {}
        for step in reversed(self.steps):
            try:
                found = self._whole(step, shapes, identity)
            except _Damaged as error:
                damaged[step] = f"checkpoint {step} in {self.folder} is damaged: {error}."
                self.say(damaged[step])
                continue
            self._put_aside(damaged)
            return found
        if damaged:
            last = "No checkpoint is whole: name another folder to start again."
            raise BadFile(*damaged.values(), last)
        return None

    def _put_aside(self, steps: Collection[int]) -> None:
        """Give damaged checkpoints other names: orbax writes none before a later one."""
        if not steps:
            return
        if jax.process_index() == 0:
            for step in steps:
                aside = self.folder / f"damaged-{step}-{time.time_ns()}"
                (self.folder / str(step)).rename(aside)
                self.say(f"checkpoint {step} is {aside.name} now.")
        agreed(True)  # nobody looks before that is done
        self._manager.reload()

    def _whole(self, step: int, shapes: Tree, identity: dict[str, Any]) -> Restored:
        """A checkpoint that all processes find whole: alone, some would go on from another.

        Raises:
            BadInput: as `restore`.
            _Damaged: one of them does not.
        """
        problem, found = "", None
        try:
            found, saved = self._read(step, shapes, identity)
        except BadInput:
            raise
        except Exception as error:  # what damaged files make orbax raise is of any kind
            problem = _reason(error)
        if not agreed(found is not None) or found is None:
            raise _Damaged(problem or "another process cannot read it")
        changed = [name for name, bits in fingerprints(found.state).items() if saved[name] != bits]
        if not agreed(not changed):
            which = changed[0] if changed else "what another process read"
            raise _Damaged(f"the bits of {which} are not those that were saved")
        if found.forgot:
            found.state["lost"] = nothing_lost(shapes)
        return found

    def _read(
        self, step: int, shapes: Tree, identity: dict[str, Any]
    ) -> tuple[Restored, dict[str, int]]:
        """What lies there, and the fingerprints of what was saved."""
        args = self._orbax.args
        told = self._manager.restore(step, args=args.Composite(about=args.JsonRestore()))
        about: dict[str, Any] = told["about"]
        saved = about.pop("fingerprints")
        self._compare(step, shapes, saved, identity, about)
        parts = _parts(shapes)
        forgot = "lost" in parts and not _same_lost(about["arrays"], shapes)
        if forgot:
            del parts["lost"]
        asked = {name: args.StandardRestore(tree) for name, tree in parts.items()}
        found = self._manager.restore(step, args=args.Composite(**asked))
        state: Tree = found["state"] | ({"lost": found["lost"]} if "lost" in asked else {})
        return Restored(step=step, state=state, about=about, forgot=forgot), saved

    def _compare(
        self,
        step: int,
        shapes: Tree,
        saved: dict[str, int],
        identity: dict[str, Any],
        about: dict[str, Any],
    ) -> None:
        """That the checkpoint is of this model under this optimizer, and of this data."""
        where = f"checkpoint {step} in {self.folder}"
        kept, asked = (_without_lost(told) for told in (about["arrays"], described(shapes)))
        saved = _without_lost(saved)
        names = sorted(set(kept) ^ set(asked))
        if names:
            raise BadInput(
                f"{where} is of another model or optimizer: {len(names)} arrays are only in one of "
                f"both, such as {names[0]}."
            )
        for name, shape in asked.items():
            if kept[name] != shape:
                raise BadInput(f"{where}: {name} is {kept[name]} there and {shape} in the plan.")
        if set(saved) != set(asked):
            raise _Damaged("its page does not name all arrays")
        for key, value in identity.items():
            if about["order"].get(key) != value:
                raise BadInput(
                    f"{where} was trained on data in another order: {key} is "
                    f"{_short(about['order'].get(key))} there and {_short(value)} here."
                )

    def close(self) -> bool:
        """Wait, and let go of the folder; whether the last checkpoint is whole."""
        whole = self.wait()
        try:
            self._manager.close()
        except Exception as error:  # what a checkpoint failed of comes up again here
            if whole:
                self.say(f"{self.folder}: {_reason(error)}.")
        sys.unraisablehook = self._hook
        return whole


def _without_late(hook: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """A hook that passes over what tasks of orbax say once more after they have failed."""

    def told(about: Any) -> None:
        if not str(about.exc_value).startswith(LATE):
            hook(about)

    return told


def described(shapes: Tree) -> dict[str, str]:
    """Path of each array -> `float32[2, 3]`."""
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): f"{x.dtype}{list(x.shape)}"
        for path, x in jax.tree.leaves_with_path(shapes)
    }


def _parts(state: Tree) -> dict[str, Tree]:
    """What is saved by itself: what sums in int8 have lost goes with its layout alone."""
    rest = {name: tree for name, tree in state.items() if name != "lost"}
    return {"state": rest, "lost": state["lost"]} if "lost" in state else {"state": rest}


def _without_lost(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: told for name, told in arrays.items() if not name.startswith("lost/")}


def _same_lost(arrays: dict[str, str], shapes: Tree) -> bool:
    asked = described({"lost": shapes["lost"]})
    return asked == {name: told for name, told in arrays.items() if name.startswith("lost/")}


def _reason(error: Exception) -> str:
    text = (str(error).splitlines() or [""])[0] or type(error).__name__
    text = text.split(". See full")[0]  # pages of tensorstore
    return _short(text.rsplit(": ", 1)[-1] if "Failed" in text else text).rstrip(".")


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 120 else text[:117] + "..."
