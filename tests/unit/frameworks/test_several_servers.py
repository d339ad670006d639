"""Files that start several engines: the first is planned, and how to plan another is said."""

from __future__ import annotations

import pytest

from shardwise.frameworks import registry
from shardwise.frameworks.launch import ServingLaunch

COMPOSE = """services:
  large:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-32B --tensor-parallel-size 2 --max-model-len 8192
  small:
    image: vllm/vllm-openai:v0.11.0
    command: ["--model", "Qwen/Qwen3-8B", "--tensor-parallel-size", "1"]
"""
DYNAMO = """apiVersion: nvidia.com/v1alpha1
kind: DynamoGraphDeployment
spec:
  services:
    Frontend:
      extraPodSpec:
        mainContainer:
          command: ["python3", "-m", "dynamo.frontend", "--http-port", "8000"]
    Prefill:
      extraPodSpec:
        mainContainer:
          command: ["python3", "-m", "dynamo.{engine}"]
          args: ["--{model}", "Qwen/Qwen3-32B", "--{size}", "2"]
    Decode:
      extraPodSpec:
        mainContainer:
          command: ["python3", "-m", "dynamo.{engine}"]
          args: ["--{model}", "Qwen/Qwen3-32B", "--{size}", "4"]
"""


@pytest.mark.parametrize(
    ("text", "framework"),
    [
        (COMPOSE, "vllm"),
        (DYNAMO.format(engine="vllm", model="model", size="tensor-parallel-size"), "vllm"),
        (DYNAMO.format(engine="sglang", model="model-path", size="tp"), "sglang"),
    ],
)
def test_the_first_of_several_servers_is_planned(text: str, framework: str) -> None:
    content = registry.read(text, "a.yaml")
    launch = content.launch
    assert content.framework.name == framework
    assert isinstance(launch, ServingLaunch)
    assert (launch.model, launch.sizes["tensor"]) == ("Qwen/Qwen3-32B", 2)
    (note,) = (note for note in launch.notes if "servers" in note)
    assert note.startswith("of its 2 servers the first is planned: ")
    assert note.endswith("save a file with its command alone.")


def test_one_server_is_not_several() -> None:
    text = COMPOSE[: COMPOSE.index("  small")]
    launch = registry.read(text, "a.yaml").launch
    assert launch.notes == ()
    assert launch.model == "Qwen/Qwen3-32B"
