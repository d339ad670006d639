"""Manifests and YAML, held against the readers of others; commands against this package's own."""

from __future__ import annotations

import importlib
import re
import shlex
from typing import Any

import pytest

from shardwise.cli.command import command_of
from shardwise.frameworks import registry, simple_yaml
from shardwise.frameworks.exported import engine, training_run
from shardwise.frameworks.launch import ServingLaunch
from tests.unit.frameworks import plans

KUBERNETES = "1.33"


@pytest.mark.oracle
@pytest.mark.parametrize("name", ["fsdp-tensor", "slices"])
def test_kubernetes_takes_the_jobs_of_a_jobset(name: str) -> None:
    validate = importlib.import_module("kubernetes_validate").validate
    manifest = simple_yaml.read(registry.export(plans.training(name), "jobset").text, "job.yaml")
    for replicated in manifest["spec"]["replicatedJobs"]:
        job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": replicated["name"]}}
        validate({**job, **replicated["template"]}, KUBERNETES, strict=True)


@pytest.mark.oracle
@pytest.mark.parametrize("framework", ["maxtext", "megatron-bridge", "jobset", "vllm", "sglang"])
def test_pyyaml_reads_what_was_written(framework: str) -> None:
    yaml: Any = importlib.import_module("yaml")
    if framework in registry.names("train"):
        plan: Any = plans.training("experts")
        settings = registry.find(framework).write(training_run(plan)).settings
    else:
        plan = plans.serving("both")
        settings = registry.find(framework).write(engine(plan, None)).settings
    text = registry.export(plan, framework).text
    assert yaml.safe_load(text) == settings
    assert simple_yaml.read(text, "x.yaml") == settings


TEXTS = [
    "a: 1\nb: [1, 2.5, x y, 'it''s', \"q\\n\"]\n",
    "a:\n- b: 1\n  c: [d, e]\n-\n  - f\n  - {g: 1, h: [2]}\n",
    "a: |\n  x: 1\n    y # no comment\n\nb: # a comment\n  c: ~\n",
    "---\na: yes\nb: 'yes'\nc: 1e-3\nd: http://x:80/y\ne: [\n  1,\n  [2, 3]]\n",
    "k: 007x\nm: -5\nn: .5\no: ''\np: {}\nq: []\n",
]


@pytest.mark.oracle
@pytest.mark.parametrize("text", TEXTS)
def test_pyyaml_reads_the_same(text: str) -> None:
    yaml: Any = importlib.import_module("yaml")
    mine = simple_yaml.read(text, "x.yaml")
    if "1e-3" in text:  # YAML 1.1 takes a float without a point for a text; YAML 1.2 does not
        mine["c"] = "1e-3"
    assert mine == yaml.safe_load(text)


@pytest.mark.parametrize("framework", ["jobset", "slurm"])
def test_the_commands_that_are_started_exist(framework: str) -> None:
    text = registry.export(plans.training("interleaved"), framework).text
    text = text.replace("\\n", "\n").replace("\\\\", "\\")
    commands = re.findall(r"shardwise (plan|train) ([^'\n;]*(?:\\\n[^'\n]*)?)", text)
    assert [verb for verb, _ in commands] == ["plan", "train"]
    modules = {"plan": "shardwise.cli.verbs.training.plan", "train": "shardwise.cli.verbs.train"}
    for verb, line in commands:
        known = {
            name
            for param in command_of(importlib.import_module(modules[verb]).run).params
            for name in param.opts
        }
        words = shlex.split(
            line.replace("\\\n", " ").replace('"', "").replace("$((", "").rstrip("\\")
        )
        used = {word for word in words if word.startswith("-")}
        assert used
        assert used <= known


def test_variables_of_a_container_are_put_in() -> None:
    text = """
apiVersion: v1
kind: Pod
spec:
  containers:
  - name: vllm
    command: [vllm, serve, m]
    args: ["--tensor-parallel-size", "$(TP)", "--max-model-len=4096"]
    env:
    - name: TP
      value: "4"
"""
    assert registry.read(text, "pod.yaml").launch.sizes["tensor"] == 4


def test_variables_of_a_container_are_those_of_its_script() -> None:
    text = """
apiVersion: apps/v1
kind: Deployment
spec:
  template:
    spec:
      containers:
      - name: server
        env:
        - name: TP_SIZE
          value: "4"
        - name: MAXLEN
          value: "16384"
        command: ["sh", "-c"]
        args:
        - vllm serve a/model --tensor-parallel-size ${TP_SIZE:-8} --max-model-len $MAXLEN
"""
    launch = registry.read(text, "a.yaml").launch
    assert isinstance(launch, ServingLaunch)
    assert (launch.sizes["tensor"], launch.context) == (4, 16384)
