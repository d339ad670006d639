"""What is exported: the parts of a plan that launch configurations are made of, and the result."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from shardwise.errors import BadFile, BadInput
from shardwise.frameworks.launch import Launch
from shardwise.frameworks.watched import Watched, last_name
from shardwise.hardware import Switched, System
from shardwise.models import ModelConfig
from shardwise.plan.machine import errors_at, system_of
from shardwise.plan.schema.architecture import model_of
from shardwise.plan.schema.serving import PlannedEngines, ServingPlan
from shardwise.plan.schema.training import Plan
from shardwise.search.model_sizes import divisors
from shardwise.search.training.framework_limits import limit_of
from shardwise.strategy.layout import Layout
from shardwise.vocabulary import FRAMEWORK_ALIASES
from shardwise.workload import Train

Work = Literal["train", "serve"]
Settings = dict[str, Any]  # of a file, nested as in it


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """How the chips of a machine are grouped into processes' hosts.

    Args:
        count: nodes of the machine.
        chips: chips of one node.
        slices: TPU slices, joined by a data-center network.
        domains: NVLink domains of GPUs, of one or several nodes.
    """

    count: int
    chips: int
    slices: int = 1
    domains: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRun:
    """A training plan as frameworks see it."""

    plan: Plan
    layout: Layout
    job: Train
    system: System
    nodes: Nodes
    model: ModelConfig

    @property
    def is_moe(self) -> bool:
        """Whether the model has experts."""
        return self.plan.model.n_experts > 0

    @property
    def latent(self) -> bool:
        """Whether attention has latent keys and values (MLA)."""
        return _is_latent(self.model)

    @property
    def expert_tensor(self) -> int:
        """Tensor shards of one expert."""
        return self.layout.expert_tensor or self.layout.mesh.tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """The engines of a serving plan that do the same part of the work, as frameworks see them.

    Args:
        layout: of one engine.
        part: "prefill" or "decode" of a disaggregated plan; None for engines that do both.
        batch: sequences of an engine.
    """

    plan: ServingPlan
    layout: PlannedEngines
    part: str | None
    batch: int
    nodes: Nodes
    model: ModelConfig

    @property
    def is_moe(self) -> bool:
        """Whether the model has experts."""
        return self.plan.model.n_experts > 0

    @property
    def latent(self) -> bool:
        """Whether attention has latent keys and values (MLA)."""
        return _is_latent(self.model)

    @property
    def longest_context(self) -> int:
        """Tokens of the longest request: the plan's context is that of the mean one."""
        work = self.plan.workload
        traffic = self.plan.estimate.traffic
        if not traffic or not (traffic.prompt or traffic.output):
            return work.context
        longest_prompt = max(traffic.prompt or (work.prompt or 0,))
        return longest_prompt + max(traffic.output or (work.output or 0,))


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """The settings of a file, and what it cannot say.

    Args:
        notes: sentences about parts of the plan that the framework has no option for.
        command: how the file is used, as a line of a shell.
        text: the file itself, where its settings do not make it.
    """

    settings: Settings
    notes: Sequence[str] = field(default=())
    command: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """One framework whose launch configurations are written and read.

    Args:
        name: as on the command line.
        work: what it runs.
        suffix: of its files, which says how they are parsed: ".yml", ".json", ".sh", ".toml".
        as_of: the version whose options are written, and its date.
        write: a plan -> the settings of a file.
        read: the settings of a file -> what they say.
        knows: how many of the settings are options of this framework and of few others.
        tpus: whether it runs on TPUs too, not on GPUs alone.
    """

    name: str
    title: str
    work: Work
    suffix: str
    as_of: str
    write: Callable[[Any], Written]
    read: Callable[[Settings], Launch]
    knows: Callable[[Settings], int]
    tpus: bool = False


def refuse(framework: str, asked: str, has: str, nearest: str) -> BadInput:
    """The error for a plan that a framework cannot run.

    Args:
        asked: the part of the plan.
        has: what the framework has in its place.
        nearest: the option of `shardwise plan` with which the framework can run the plan.
    """
    return BadInput(f"{framework} does not run {asked}: {has}. Nearest: plan again with {nearest}.")


def check_runs(run: TrainingRun, exported_to: str) -> None:
    """Refuse a plan that is beyond the limits of a framework, within which its search keeps.

    Raises:
        BadInput: with the part of the plan that the framework does not run.
    """
    framework = FRAMEWORK_ALIASES.get(exported_to, exported_to)
    limit = limit_of(framework, run.model, run.system.chip, run.layout)
    if limit:
        nearest = f"--framework {framework}"
        if run.plan.workload.framework == framework:
            nearest += " and without the sizes and words that you fixed beyond it"
        raise refuse(exported_to, limit.asked, limit.has, nearest)


def training_run(plan: Plan) -> TrainingRun:
    """Read a training plan.

    Raises:
        BadFile: a part of the plan is not valid.
    """
    with errors_at("$.hardware"):
        system = system_of(plan.hardware)
    with errors_at("$.model.architecture"):
        model = model_of(plan.model.architecture)
    with errors_at("$.strategy"):
        layout = plan.layout
    return TrainingRun(
        plan=plan,
        layout=layout,
        job=plan.job,
        system=system,
        nodes=nodes_of(system),
        model=model,
    )


def engine(plan: ServingPlan, part: str | None) -> Engine:
    """The engines of a plan, of which a disaggregated one has two kinds.

    Args:
        part: "prefill" or "decode" for a disaggregated plan, else None.

    Raises:
        BadInput: a part is missing, or the plan has no parts.
    """
    strategy = plan.strategy
    if strategy.prefill is None:
        if part:
            raise BadInput(
                f"--part {part}: the {strategy.servers.count:,} engines of the plan do both "
                "prefill and decode. Leave --part out."
            )
        layout = strategy.servers
    elif part is None:
        raise BadInput(
            f"the plan has {strategy.prefill.count:,} engines for prefill and "
            f"{strategy.servers.count:,} for decode, and a file is of one kind. Add --part prefill "
            "or --part decode."
        )
    else:
        layout = strategy.prefill if part == "prefill" else strategy.servers
    with errors_at("$.hardware"):
        system = system_of(plan.hardware)
    with errors_at("$.model.architecture"):
        model = model_of(plan.model.architecture)
    batch = plan.estimate.decode.batch
    if part == "prefill":
        batch = plan.estimate.prefill.prompts
    nodes = nodes_of(system)
    return Engine(plan=plan, layout=layout, part=part, batch=batch, nodes=nodes, model=model)


def _is_latent(model: ModelConfig) -> bool:
    return any(attention.mla for attention, _ in model.attentions)


def nodes_of(system: System) -> Nodes:
    """The nodes of a machine: hosts of TPUs, or of GPUs, of which an NVLink domain has several."""
    if isinstance(system.topology, Switched):
        domain = system.topology.gpus_per_node
        chips = max(n for n in divisors(domain) if n <= (system.chip.chips_per_host or domain))
        domains = -(-system.n_chips // domain)
        return Nodes(count=domains * (domain // chips), chips=chips, domains=domains)
    hosts = system.n_hosts or 1
    return Nodes(
        count=hosts,
        chips=max(1, system.n_chips // hosts),
        slices=system.n_chips // system.chips_per_slice,
    )


def number(settings: Mapping[str, Any], key: str, default: Any, framework: str) -> Any:
    """The number at a key of a file, or the default.

    Raises:
        BadFile: it is no finite number.
    """
    value = settings.get(key)
    if value is None:
        return default
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise BadFile(no_number(framework, key, value))
    return value


def no_number(framework: str, key: str, value: object) -> str:
    """Why the value of an option is no number, and how to give that of a variable."""
    if not isinstance(value, str) or not re.search(r"[$`]", value):
        return f"{framework}: {key} is {value!r}; it must be a number."
    pattern = r"[A-Za-z_]\w*" if "$((" in value else r"\$\{?(\w*[A-Za-z]\w*)"
    variables = list(dict.fromkeys(re.findall(pattern, value)))
    if re.search(r"\$\((?!\()|`", value) or not variables:
        return (
            f"{framework}: {key} is {value}, which only a shell knows. Write a number in its place."
        )
    given = " ".join(f"{variable}=NUMBER" for variable in variables)
    return (
        f"{framework}: {key} is {value}, and neither the file nor the environment says what "
        f"{' and '.join(variables)} {'is' if len(variables) == 1 else 'are'}. Set it: {given} "
        "shardwise import ..."
    )


def setting(settings: Mapping[str, Any], path: str, default: Any = None) -> Any:
    """The value at a path of nested settings: `trainer.strategy.context_parallel_size`."""
    value: Any = settings
    if isinstance(settings, Watched):
        settings.asked.add(last_name(path))
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return default
        value = value[key]
    return default if value is None else value


def flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as path -> value."""
    values: dict[str, Any] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping):
            values |= flat(value, f"{prefix}{key}.")
        else:
            values[f"{prefix}{key}"] = value
    return values


def nested(values: Mapping[str, Any]) -> Settings:
    """Path -> value as nested settings, without values that are None."""
    settings: Settings = {}
    for path, value in values.items():
        if value is None:
            continue
        *keys, last = path.split(".")
        branch = settings
        for key in keys:
            branch = branch.setdefault(key, {})
        branch[last] = value
    return settings
