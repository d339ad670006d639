"""Commands that start another one: containers, MPI, Slurm; and the variables that they give it."""

from __future__ import annotations

from typing import Any

import pytest

from shardwise.frameworks import registry, shell_script
from shardwise.frameworks.launch import ServingLaunch
from shardwise.frameworks.shell.run import run

DOCKER = r"""docker run --rm -it --gpus all --ipc=host --shm-size 32g -p 8000:8000 \
  -v ~/.cache/huggingface:/cache -e TP_SIZE=4 --env MAX_LEN=8192 \
  --env=SEQS=64 -e HF_TOKEN --name server lmsysorg/sglang:v0.5.6 """


def settings(text: str) -> dict[str, Any]:
    return shell_script.settings(run(text, "a.sh"))


def engine(text: str) -> ServingLaunch:
    launch = registry.read(text, "a.sh").launch
    assert isinstance(launch, ServingLaunch)
    return launch


@pytest.mark.parametrize(
    "launcher",
    [
        DOCKER,
        DOCKER.replace("docker run", "sudo podman run --replace"),
        DOCKER.replace("docker run", "docker container run"),
        "docker exec -it -eTP_SIZE=4 -e MAX_LEN=8192 -e SEQS=64 server ",
        "srun -N 1 --container-image a/b --export=ALL,TP_SIZE=4,MAX_LEN=8192,SEQS=64 ",
        "srun --export ALL,TP_SIZE=4,MAX_LEN=8192,SEQS=64 --ntasks 1 ",
        "env TP_SIZE=4 MAX_LEN=8192 SEQS=64 ",
        "TP_SIZE=4 MAX_LEN=8192 SEQS=64 ",
        "mpirun --allow-run-as-root -x TP_SIZE=4 -x MAX_LEN=8192 -x SEQS=64 -np 1 ",
    ],
)
def test_variables_of_a_launcher_are_those_of_its_script(launcher: str) -> None:
    script = (
        "bash -c 'vllm serve a/model --tensor-parallel-size ${TP_SIZE:-8} "
        "--max-model-len $MAX_LEN --max-num-seqs $SEQS'"
    )
    launch = engine(f"TP_SIZE=2\n{launcher}{script}")
    assert (launch.sizes["tensor"], launch.context, launch.batch) == (4, 8192, 64)
    assert launch.model == "a/model"


def test_variables_of_a_launcher_end_with_its_command() -> None:
    text = (
        "TP=2\nTP=4 run_it\ndocker run -e TP=8 image true\nvllm serve m --tensor-parallel-size $TP"
    )
    assert engine(text).sizes["tensor"] == 2


def test_flags_of_a_container_are_not_those_of_its_command() -> None:
    values = settings("docker run -q -p 8:8 --gpus all image vllm serve a/model --tp 4")
    assert values == {"$": ["vllm", "serve", "a/model"], "--tp": 4}


@pytest.mark.parametrize(
    "command",
    [
        "--model a/model --tensor-parallel-size 4",
        "a/model --tensor-parallel-size 4",
    ],
)
def test_the_image_of_vllm_serves(command: str) -> None:
    launch = engine(f"docker run --gpus all -p 80:80 vllm/vllm-openai:v0.11.0 {command}")
    assert (launch.model, launch.sizes["tensor"]) == ("a/model", 4)


def test_an_entrypoint_is_the_command() -> None:
    text = "docker run --entrypoint vllm $DOCKER_ARGS $IMAGE serve a/model --tensor-parallel-size 4"
    assert engine(text).model == "a/model"


@pytest.mark.parametrize(
    "launcher",
    [
        "mpirun -n 8",
        "mpirun --allow-run-as-root -np 8 --oversubscribe",
        "mpirun -n 8 --oversubscribe --allow-run-as-root trtllm-llmapi-launch",
        "trtllm-llmapi-launch",
        "srun -N 2 --ntasks-per-node 4 --mpi=pmix --container-image a/b trtllm-llmapi-launch",
    ],
)
@pytest.mark.parametrize("command", ["trtllm-serve", "trtllm-serve serve"])
def test_the_model_of_a_server_under_mpi_is_read(launcher: str, command: str) -> None:
    launch = engine(f"{launcher} {command} a/model --tp_size 8 --max_seq_len 2048")
    assert (launch.model, launch.sizes["tensor"], launch.context) == ("a/model", 8, 2048)


@pytest.mark.parametrize(
    "text",
    ["docker", "docker run", "docker run -e", "docker run --env=", "podman container", "mpirun -n",
     "srun --export", "env", "docker run -", "docker run --entrypoint '' image"],
)  # fmt: skip
def test_launchers_without_a_command(text: str) -> None:
    assert settings(text)["$"] is not None


def test_launchers_in_launchers_end() -> None:
    assert settings("env " * 500 + "bash -c 'train.py --lr 1'") is not None
