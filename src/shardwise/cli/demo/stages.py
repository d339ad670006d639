"""The stages of the demo, in their order."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from shardwise.cli.demo.commands import Screen, typed
from shardwise.cli.demo.conversation import conversation

TRAIN_S = 20  # planned seconds of the training run, within the limits of its steps
MIN_STEPS = 60
MAX_STEPS = 600
RATE = 3e-3  # learning rate
PROMPT = "def "
QUESTION = "What is the capital of France?"
REAL_MODEL = "smollm2-135m-instruct"

# A Llama of 1.2M parameters on bytes: a hundred steps take half a minute on two cores.
SMALL_LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 4,
    "hidden_size": 128,
    "intermediate_size": 384,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 264,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A part of the demo.

    Args:
        name: the word of --skip, and of the file with its screens.
        title: what it does.
        screens: runs its commands in the folder of the demo, and yields what each one printed.
        needs: files of earlier stages.
        writes: files and folders of its own, in the folder; the first is the one to look at.
        charts: page of charts -> the file that it draws; both in the folder.
        answer: begin of the line that is its answer; empty for the first lines of its last screen.
    """

    name: str
    title: str
    screens: Callable[[Path], Iterator[Screen]]
    needs: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    charts: Mapping[str, str] = field(default_factory=dict)
    answer: str = ""


def measure(folder: Path) -> Iterator[Screen]:
    yield typed(folder, "hw", "measure", "2", "-o", "host.toml")


def plan_pod(folder: Path) -> Iterator[Screen]:
    words = "plan llama3-70b v5p:16x20x28 --train --batch 1120x4096 --tokens 15T -o pod.json"
    yield typed(folder, *words.split())


def prove(folder: Path) -> Iterator[Screen]:
    words = "plan llama3-70b v5e:4x4 --serve --dtype int8 --context 8192 --batch 32 -o tpu.json"
    yield typed(folder, *words.split())
    yield typed(folder, "check", "tpu.json")


def plan_here(folder: Path) -> Iterator[Screen]:
    model = folder / "small"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(SMALL_LLAMA, indent=1) + "\n")
    words = "plan ./small ./host.toml:2 --train --batch 16x128 --dtype fp32 -o plan.json"
    yield typed(folder, *words.split())


def train(folder: Path) -> Iterator[Screen]:
    library = Path(sysconfig.get_paths()["stdlib"])
    modules = sorted(str(path) for path in library.glob("*.py"))
    yield typed(
        folder,
        *("data", "tokenize", *modules, "--out", "tokens"),
        shown=("data tokenize", f"{library}/*.py", "--out tokens"),
    )
    plan = json.loads((folder / "plan.json").read_text())
    planned_s = plan["estimate"]["step_s"]["expected"]
    n_steps = max(MIN_STEPS, min(MAX_STEPS, int(TRAIN_S / planned_s)))
    words = (
        f"train plan.json --data tokens --steps {n_steps} --rate {RATE} --warmup {n_steps // 10} "
        "--checkpoint run --export model --profile trace"
    )
    yield typed(folder, *words.split(), "--sample", PROMPT)


def profile(folder: Path) -> Iterator[Screen]:
    yield typed(folder, "profile", "trace", "--perfetto", "trace.json.gz")


def compare(folder: Path) -> Iterator[Screen]:
    yield typed(folder, "compare", "plan.json", "trace")
    document = typed(folder, "compare", "plan.json", "trace", "--json").output
    (folder / "compare.json").write_text(document, encoding="utf-8")


def talk_to_trained(folder: Path) -> Iterator[Screen]:
    yield from conversation(folder, "model", prompt=PROMPT)


def talk_to_real(folder: Path) -> Iterator[Screen]:
    yield from conversation(folder, REAL_MODEL, message=QUESTION)


STAGES = (
    Stage(
        name="pod",
        title="plan LLaMA-3-70B, 15T tokens, on a TPU v5p pod of 8,960 chips",
        screens=plan_pod,
        writes=("pod.json",),
        charts={"pod.html": "pod.json"},
    ),
    Stage(
        name="prove",
        title="prove with the TPU compiler, without a TPU, that 16 v5e serve it",
        screens=prove,
        writes=("tpu.json",),
        charts={"tpu.html": "tpu.json"},
    ),
    Stage(
        name="measure",
        title="measure this machine as two devices",
        screens=measure,
        writes=("host.toml",),
        answer="matmuls",
    ),
    Stage(
        name="plan",
        title="plan a small Llama on this machine",
        screens=plan_here,
        needs=("host.toml",),
        writes=("plan.json", "small"),
        charts={"plan.html": "plan.json"},
    ),
    Stage(
        name="train",
        title="train it under the plan, on Python's own sources",
        screens=train,
        needs=("plan.json",),
        writes=("run", "tokens", "model", "trace"),
        charts={"run.html": "run"},
        answer="a step ",
    ),
    Stage(
        name="profile",
        title="say where the time of a step went",
        screens=profile,
        needs=("trace",),
        writes=("trace.json.gz",),
    ),
    Stage(
        name="compare",
        title="compare the steps with their plan",
        screens=compare,
        needs=("plan.json", "trace"),
        writes=("compare.json",),
        charts={"compare.html": "compare.json"},
    ),
    Stage(
        name="serve",
        title="serve the trained model, and let it continue a line of code",
        screens=talk_to_trained,
        needs=("model",),
        answer="answer",
    ),
    Stage(
        name="talk",
        title="serve SmolLM2-135M-Instruct, and talk to it over HTTP",
        screens=talk_to_real,
        answer="answer",
    ),
)
