"""YAML of several lines and documents, as manifests have it."""

from __future__ import annotations

import pytest

import shardwise as sw
from shardwise.errors import BadFile, BadInput
from shardwise.frameworks import registry, replan, simple_yaml
from shardwise.frameworks.launch import ServingLaunch


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: one\n  two\n  three\nb: 1\n", {"a": "one two three", "b": 1}),
        ("a:\n- one\n  two\n- 3\n", {"a": ["one two", 3]}),
        ('a: "one\n  two"\nb: 1\n', {"a": "one two", "b": 1}),
        ("a:\n- |\n  x\n   y\n- 2\n", {"a": ["x\n y\n", 2]}),
        ("---\na: 1\n", {"a": 1}),
        ("# note\n---\na: 1\n---\n# end\n", {"a": 1}),
    ],
)
def test_scalars_of_several_lines(text: str, value: object) -> None:
    assert simple_yaml.read(text, "a.yaml") == value


def test_documents_are_named_with_what_to_do() -> None:
    text = "tp-size: 8\nmodel-path: x\n---\nkind: Deployment\n"
    message = r"2 YAML documents: tp-size \(line 1\), Deployment \(line 4\)\. .* save the document"
    with pytest.raises(BadFile, match=message):
        registry.read(text, "a.yaml")


def test_quotes_in_a_block_scalar_open_nothing() -> None:
    text = "a: |\n  say\n  \"\n  more: 'x\nb: 1\n"
    assert simple_yaml.read(text, "a.yaml") == {"a": "say\n\"\nmore: 'x\n", "b": 1}


MANIFEST = """\
apiVersion: v1
kind: Namespace
---
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: server
        command: ["vllm", "serve"]
        args:
        - --model=Qwen/Qwen3-32B
        - --tensor-parallel-size=8
        - --max-model-len=9216
"""
JOB = """\
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: jax-tpu
    command:
    - bash
    - -c
    - |
      echo "start";
      (export A=1 && python3 -m MaxText.train base.yml model_name=llama3-8b ici_fsdp_parallelism=8
      per_device_batch_size=2) &
"""
COMPOSE = """\
services:
  server:
    image: vllm
    command: >-
      --model Qwen/Qwen3-32B
      --max-model-len 9216
      --tensor-parallel-size 8
"""


@pytest.mark.parametrize(
    ("text", "framework", "sizes"),
    [
        (MANIFEST, "vllm", {"tensor": 8}),
        (JOB, "maxtext", {"fsdp": 8}),
        (COMPOSE, "vllm", {"tensor": 8}),
    ],
)
def test_commands_of_containers_are_read(text: str, framework: str, sizes: dict[str, int]) -> None:
    content = registry.read(text, "a.yaml")
    assert content.framework.name == framework
    assert {role: n for role, n in content.launch.sizes.items() if n > 1} == sizes


DEPLOYMENT = """apiVersion: apps/v1
kind: Deployment
spec:
  replicas: 3
  template:
    spec:
      containers:
        - command: [vllm, serve, meta-llama/Llama-3.1-8B-Instruct, --tensor-parallel-size, "2"]
"""


def test_copies_of_a_deployment_need_their_chips() -> None:
    launch = registry.read(DEPLOYMENT, "a.yaml").launch
    assert isinstance(launch, ServingLaunch)
    assert launch.copies == 3
    model, context = sw.model("llama3.1-8b"), 8192
    with pytest.raises(BadInput, match="starts 3 engines of 2 chips, 6 chips; h100:4 has 4"):
        replan.serving_plan(launch, model, sw.hardware("h100:4"), context)
    plan = replan.serving_plan(launch, model, sw.hardware("h100:8"), context)
    assert plan.strategy.servers.count == 4  # as many as the machine holds: `import` says so
    assert plan.workload.engine == "vllm"
