"""The files in `examples`, read by the tools that they are for."""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
from pathlib import Path
from typing import Any

import pytest

from shardwise.cli.command import command_of
from shardwise.runtime.processes.rendezvous import Rendezvous
from tests.conftest import ROOT
from tests.unit.serve.model_files.tiny import write_folder

EXAMPLES = ROOT / "examples"
MANIFEST = EXAMPLES / "kubernetes" / "leaderworkerset.yaml"
KUBERNETES = "1.33"
TEMPLATES = ("leaderTemplate", "workerTemplate")
# The fields that the manifest uses, as api/leaderworkerset/v1/leaderworkerset_types.go of
# kubernetes-sigs/lws has them at 060ab4d; pod templates are left to Kubernetes.
COUNT = {"type": "integer", "minimum": 0}
LEADER_WORKER_SET = {
    "type": "object",
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "additionalProperties": False,
    "properties": {
        "apiVersion": {"const": "leaderworkerset.x-k8s.io/v1"},
        "kind": {"const": "LeaderWorkerSet"},
        "metadata": {"type": "object", "required": ["name"]},
        "spec": {
            "type": "object",
            "required": ["leaderWorkerTemplate"],
            "additionalProperties": False,
            "properties": {
                "replicas": COUNT,
                "startupPolicy": {"enum": ["LeaderCreated", "LeaderReady"]},
                "rolloutStrategy": {
                    "type": "object",
                    "required": ["type"],
                    "additionalProperties": False,
                    "properties": {
                        "type": {"enum": ["RollingUpdate"]},
                        "rollingUpdateConfiguration": {
                            "type": "object",
                            "additionalProperties": False,
                            "properties": {
                                "partition": COUNT,
                                "maxUnavailable": {"type": ["integer", "string"]},
                                "maxSurge": {"type": ["integer", "string"]},
                            },
                        },
                    },
                },
                "leaderWorkerTemplate": {
                    "type": "object",
                    "required": ["workerTemplate"],
                    "additionalProperties": False,
                    "properties": {
                        "size": COUNT,
                        "restartPolicy": {
                            "enum": [
                                "Default",
                                "RecreateGroupOnPodRestart",
                                "RecreateGroupAfterStart",
                                "None",
                            ]
                        },
                        "leaderTemplate": {"type": "object"},
                        "workerTemplate": {"type": "object"},
                    },
                },
            },
        },
    },
}


def tool(name: str) -> Any:
    """A module that only some environments have."""
    return pytest.importorskip(name, reason=f"pip install {name.replace('_', '-')}")


def manifest() -> tuple[dict[str, Any], dict[str, Any]]:
    """The LeaderWorkerSet and its Service."""
    group, service = tool("yaml").safe_load_all(MANIFEST.read_text())
    return group, service


@pytest.mark.oracle
def test_the_set_has_the_fields_of_its_definition() -> None:
    group, service = manifest()
    tool("jsonschema").validate(group, LEADER_WORKER_SET)
    labels = {
        "leaderworkerset.sigs.k8s.io/name": group["metadata"]["name"],
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }
    assert service["spec"]["selector"] == labels


@pytest.mark.oracle
def test_kubernetes_takes_the_pods_and_the_service() -> None:
    validate = tool("kubernetes_validate").validate
    group, service = manifest()
    validate(service, KUBERNETES, strict=True)
    for name in TEMPLATES:
        template = group["spec"]["leaderWorkerTemplate"][name]
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "pod"}, **template}
        validate(pod, KUBERNETES, strict=True)


@pytest.mark.parametrize(("name", "index"), [("leaderTemplate", 0), ("workerTemplate", 1)])
def test_the_pods_run_a_command_that_exists(name: str, index: int) -> None:
    group, _ = manifest()
    templates = group["spec"]["leaderWorkerTemplate"]
    (container,) = templates[name]["spec"]["containers"]
    variables = {
        "LWS_LEADER_ADDRESS": "shardwise-0.shardwise.default",
        "LWS_GROUP_SIZE": str(templates["size"]),
        "LWS_WORKER_INDEX": str(index),
    }
    words = [*container["command"], *container["args"]]
    for variable, value in variables.items():
        words = [word.replace(f"$({variable})", value) for word in words]
    assert words[:2] == ["shardwise", "serve"]
    verb = command_of(importlib.import_module("shardwise.cli.verbs.serve").run)
    found = verb.make_context("serve", words[2:]).params
    assert (found["host"], found["port"]) == ("0.0.0.0", 8000)
    Rendezvous(**{name: found[name] for name in ("coordinator", "processes", "process")})
    assert found["process"] == index


@pytest.mark.oracle
def test_nginx_takes_its_configuration() -> None:
    parsed = tool("crossplane").parse(str(EXAMPLES / "nginx" / "nginx.conf"))
    assert (parsed["status"], parsed["errors"]) == ("ok", [])


@pytest.mark.oracle
def test_ray_serves_its_application(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("ray") is None:
        pytest.skip("pip install 'ray[serve]'")
    import httpx
    import ray
    from ray import serve

    folder = str(EXAMPLES / "ray_serve")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", folder, prepend=os.pathsep)  # of Ray's workers
    application = importlib.import_module("app").app
    model = str(write_folder(tmp_path / "tiny"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    serve.start(http_options={"port": port})
    try:
        serve.run(application({"model": model, "context": "64"}))
        body = {"prompt": [1, 2, 3], "max_tokens": 5, "temperature": 0, "ignore_eos": True}
        answer = httpx.post(f"http://127.0.0.1:{port}/v1/completions", json=body, timeout=60)
        assert answer.json()["usage"]["completion_tokens"] == 5
    finally:
        serve.shutdown()
        ray.shutdown()
