"""What a launch configuration says: the layout and the sizes of a training run, or of an engine.

Every framework's file is read to one of these values; None stands for what the file does not say.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from shardwise.errors import BadFile, BadShape
from shardwise.hardware import Chip
from shardwise.models import ModelConfig
from shardwise.strategy.mesh import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Fields of both kinds of launches.

    Args:
        sizes: mesh role -> size, for the roles that the file gives; the others have size 1.
        fill: mesh role of the chips that the sizes leave over, if the file does not count chips.
        n_chips: chips of the run, if the file says so.
        model, hardware: names as on the command line.
        ignored: keys of the file that may matter, and that a plan has no word for.
        notes: sentences about what the file sets and the plan has otherwise.
        presets: models of the sizes in the file, if it has sizes in the place of a name.
        sized_like: the first of these if all have as many parameters; planned if nobody names one.
        n_slices: slices that the file's sizes count, if it says so.
        slice_role: mesh role of the slices beyond these, if the file leaves their number open.
        counts_devices: whether sizes and numbers of chips count devices of JAX, of which a chip may
            have two (`chip_devices`).
        framework: that the file is for, by the name that exports have.
    """

    sizes: Mapping[str, int]
    fill: str | None = None
    n_chips: int | None = None
    model: str | None = None
    hardware: str | None = None
    ignored: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    presets: tuple[str, ...] = ()
    sized_like: str | None = None
    n_slices: int | None = None
    slice_role: str | None = None
    counts_devices: bool = False
    framework: str = ""

    def check_chips(self) -> None:
        """Compare the sizes with the number of chips, where the file has both.

        Raises:
            BadFile: they contradict each other.
        """
        n = math.prod(size for role, size in self.sizes.items() if role != self.fill)
        if not self.n_chips or n == self.n_chips or (self.fill and self.n_chips % n == 0):
            return
        text = " x ".join(f"{role} {size}" for role, size in self.sizes.items() if size > 1)
        raise BadFile(
            f"the file starts {self.n_chips:,} processes, and its {text or 'sizes'} = {n:,}. Write "
            f"sizes whose product {'divides' if self.fill else 'is'} {self.n_chips:,}, or start "
            f"{n:,} processes."
        )

    def mesh(self, n_chips: int, unit: str = "chips") -> Mesh:
        """The mesh on a machine.

        Args:
            unit: what the sizes count, in messages.

        Raises:
            BadShape: the sizes do not fit the chips.
        """
        sizes = {role: size for role, size in self.sizes.items() if role != self.fill}
        n = math.prod(sizes.values())
        text = " x ".join(f"{role} {size}" for role, size in sizes.items() if size > 1)
        if self.fill:
            if n_chips % n:
                raise BadShape(
                    f"the file's {text} = {n:,} {unit} do not divide the {n_chips:,} {unit} of the "
                    f"machine. Name one of {max(n, n_chips - n_chips % n):,}, or write sizes that "
                    f"divide {n_chips:,}."
                )
            sizes[self.fill] = n_chips // n
        elif n != n_chips:
            raise BadShape(
                f"the file's {text or 'one'} = {n:,} {unit}, the machine has {n_chips:,}. "
                f"Name a machine of {n:,} {unit}."
            )
        return Mesh(**sizes)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingLaunch(Launch):
    """A training run. Fields not described here are those of `Layout` and `Train`.

    Args:
        batch: sequences of a step.
        batch_per_chip: sequences of a step for each chip of the machine, if the file says that.
        n_layers, n_experts: layers of the model and experts of a layer, if the file says so.
        offload: arrays in host memory.
        expert_tensor: tensor shards of an expert; None for those of dense layers.
        chunks: (layers, stages) -> `virtual`, where the file gives the layers of a chunk instead.
        precision: one of `PRECISIONS`.
        of_model: model -> the remat policy (or parts, separated by commas) and notes, where the
            file's words for it depend on the model's layers.
        dtypes: dtypes of `Train` that differ from those of `precision`: `{"gradients": "bf16"}`.
        overlap: communication that an option of the file hides, of `OPTIONAL_OVERLAPS`.
        kernels: settings of kernels in the file, of `KERNELS`.
        mtp_layers: layers of multi-token prediction.
    """

    batch: int | None = None
    batch_per_chip: float | None = None
    n_layers: int | None = None
    n_experts: int | None = None
    offload: tuple[str, ...] = ()
    seq: int | None = None
    micro_batch: int | None = None
    n_microbatches: int | None = None
    zero: int | None = None
    schedule: str | None = None
    virtual: int | None = None
    chunks: Callable[[int, int], int] | None = None
    remat: str | None = None
    of_model: Callable[[ModelConfig], tuple[str | None, list[str]]] | None = None
    context_kind: str | None = None
    expert_tensor: int | None = None
    loss_chunks: int | None = None
    compute: str | None = None
    precision: str | None = None
    dtypes: Mapping[str, str | None] = field(default_factory=dict)
    overlap: tuple[str, ...] = ()
    kernels: tuple[str, ...] = ()
    mtp_layers: int = 0
    optimizer: str | None = None

    def on(self, model: ModelConfig, chip: Chip) -> TrainingLaunch:
        """The launch with what depends on the model and the chip, and the notes on it."""
        launch = self
        if self.of_model is not None:
            remat, notes = self.of_model(model)
            launch = replace(self, remat=remat, notes=(*self.notes, *notes), of_model=None)
        if not launch.offload or chip.pcie_bytes_per_s_per_chip is not None:
            return launch
        note = (
            f"{', '.join(launch.offload)} in host memory: no public source gives the bandwidth of "
            f"{chip.name} to its host, and the plan has them on the device. Give it after the "
            "machine to plan the offload, as ,pcie.bandwidth=32GB/s."
        )
        return replace(launch, offload=(), notes=(*launch.notes, note))

    def choices(
        self, mesh: Mesh, n_layers: int, *, has_experts: bool = False
    ) -> dict[str, int | str]:
        """The choices that a search has to keep, by the names of `sw.plan(..., fixed)`."""
        choices: dict[str, int | str] = dict(mesh.sizes)
        choices |= _expert_choice(mesh, self.expert_tensor, has_experts=has_experts)
        schedule, virtual = None, None
        if mesh.pipe > 1:
            schedule, virtual = self._pipeline(n_layers, mesh.pipe)
        optional = {
            "micro_batch": self.micro_batch,
            "n_microbatches": self.n_microbatches,
            "zero": self._zero(mesh),
            "schedule": schedule,
            "virtual": virtual,
            "remat": self.remat,
            "context_kind": self.context_kind if mesh.context > 1 else None,
            "loss_chunks": self.loss_chunks,
        }
        choices.update({name: value for name, value in optional.items() if value is not None})
        return choices

    def _pipeline(self, n_layers: int, n_stages: int) -> tuple[str | None, int | None]:
        """The schedule and its chunks; an interleaved one with a single chunk is 1F1B."""
        if self.schedule != "interleaved":
            return self.schedule, None
        n_chunks = self.virtual
        if n_chunks is None and self.chunks:
            n_chunks = self.chunks(n_layers, n_stages)
        return ("1f1b", None) if n_chunks == 1 else (self.schedule, n_chunks)

    def _zero(self, mesh: Mesh) -> int | None:
        """The ZeRO stage where it matters: with one copy of the weights, all stages are equal."""
        if mesh.data * mesh.fsdp * mesh.context * mesh.expert == 1:
            return None
        return self.zero


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingLaunch(Launch):
    """One serving engine.

    Args:
        batch: sequences of the engine at the same time.
        context: tokens of the longest sequence.
        chunk: tokens of one pass, prompts included.
        weights, kv: dtypes.
        kv_split: how the KV cache is stored, one of `KV_SPLITS`.
        expert_tensor: as of a training run.
        cache_ranks: tensor ranks that share the tokens of a KV head.
        default_batch: chip -> sequences of the engine at the same time if the file does not say.
        drafted: tokens that speculative decoding drafts for each pass.
        replicas: engines that the file starts at least, each with all weights.
        copies: of these, each in containers of its own.
        shares_experts: whether these engines share the experts of a model that has some.
        expert_note: a note about these experts.
        part: what a disaggregated engine does: "prefill" or "decode".
    """

    batch: int | None = None
    context: int | None = None
    chunk: int | None = None
    weights: str | None = None
    kv: str | None = None
    kv_split: str = "copied"
    expert_tensor: int | None = None
    cache_ranks: int = 1
    default_batch: Callable[[Chip], int] | None = None
    part: str | None = None
    drafted: int = 0
    replicas: int = 1
    copies: int = 1
    shares_experts: bool = False
    expert_note: str = ""

    @property
    def n_engines(self) -> int:
        """Engines that the file starts at least."""
        return self.replicas * self.copies

    def on(self, model: ModelConfig, context: int | None = None) -> ServingLaunch:
        """The launch with what depends on the model, and the notes on it.

        Args:
            context: in the place of the file's.
        """
        launch = self._up_to(context, model)
        if not model.is_moe:
            return launch
        if self.expert_note:
            launch = replace(launch, notes=(*launch.notes, self.expert_note), expert_note="")
        ranks, of_rank = self.replicas, self.default_batch
        if ranks == 1 or not self.shares_experts:
            return launch
        return replace(
            launch,
            sizes={**self.sizes, "expert": ranks},
            batch=self.batch and ranks * self.batch,
            default_batch=(lambda chip: ranks * of_rank(chip)) if of_rank else None,
            replicas=1,
        )

    def _up_to(self, context: int | None, model: ModelConfig) -> ServingLaunch:
        """The launch with a longest sequence; without one, that of the model."""
        if context:
            return replace(self, context=context)
        if self.context or not model.max_seq:
            return self
        note = (
            f"the file does not say the longest sequence: the {model.max_seq:,} tokens of "
            f"{model.name} are planned, as engines have it by default; --context N plans others."
        )
        return replace(self, context=model.max_seq, notes=(*self.notes, note))

    def choices(self, mesh: Mesh, *, has_experts: bool = False) -> dict[str, int | str]:
        """The choices that a search has to keep: the engine, whose number is not one of them."""
        choices: dict[str, int | str] = {
            role: size for role, size in mesh.sizes.items() if role != "data"
        }
        choices["kv"] = self.kv_split
        return choices | _expert_choice(mesh, self.expert_tensor, has_experts=has_experts)


def _expert_choice(mesh: Mesh, shards: int | None, *, has_experts: bool) -> dict[str, int]:
    """The shards of an expert over `tensor`, where they could be others."""
    if not has_experts or mesh.tensor == 1:
        return {}
    return {"expert_tensor": shards or mesh.tensor}
