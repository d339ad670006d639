"""Commands that start another one, with variables: `docker run`, `mpirun`, `srun`, `env`.

https://docs.docker.com/reference/cli/docker/container/run, https://slurm.schedmd.com/srun.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import NamedTuple

_LAUNCHERS = re.compile(
    r"(?:.*/)?(?:mpirun|mpiexec|orterun|srun|trtllm-llmapi-launch|env|sudo|nohup|exec|time|timeout"
    r"|numactl|nice|stdbuf)"
)
# Programs that they start; another word may be the value of a launcher's own flag.
_PROGRAMS = re.compile(
    r"(?:.*/)?(?:trtllm-[\w-]+|vllm|python[\d.]*|bash|sh|torchrun|accelerate|deepspeed|docker"
    r"|podman|nerdctl)"
)
_CONTAINERS = re.compile(r"(?:.*/)?(?:docker|podman|nerdctl)")
_STARTS = ("run", "exec", "create")
# Flags of containers without a value: all others have one.
_SWITCHES = {
    "--detach", "--disable-content-trust", "--env-host", "--help", "--http-proxy", "--init",
    "--interactive", "--no-healthcheck", "--no-hosts", "--oom-kill-disable", "--privileged",
    "--publish-all", "--quiet", "--read-only", "--replace", "--rm", "--rmi", "--sig-proxy",
    "--tls-verify", "--tty",
}  # fmt: skip
_SHORT_SWITCHES = "ditPq"
# A variable that nobody sets, with further flags of the container.
_FLAGS_ELSEWHERE = re.compile(r"\$\{?\w*(?:ARG|OPT|FLAG|ENV|MOUNT|VOLUME)\w*.*")
_VARIABLE = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
# Flags of shells, xpk and others whose value is a script.
_TAKES_A_SCRIPT = re.compile(r"-[a-z]*c|--command|--cmd")
_SCRIPT = re.compile(r"--(?:command|cmd)=(.*)", re.S)
_SERVES_VLLM = re.compile(r"(?:.*/)?vllm-openai(?::.*)?")  # an image whose entrypoint is a server


class Started(NamedTuple):
    """What a launcher starts.

    Args:
        launcher: its own words, if they may matter.
        variables: those that it gives to the command.
        command: the words of the command.
    """

    launcher: list[str]
    variables: dict[str, str]
    command: list[str]


def started(words: list[str]) -> Started | None:
    """The command that another one starts; None for a command that starts none.

    >>> started(["docker", "run", "-it", "-e", "TP=8", "image", "serve", "--port", "1"])
    Started(launcher=[], variables={'TP': '8'}, command=['serve', '--port', '1'])
    >>> started(["mpirun", "-n", "8", "trtllm-serve", "model"])
    Started(launcher=['mpirun', '-n', '8'], variables={}, command=['trtllm-serve', 'model'])
    """
    if not words:
        return None
    if _CONTAINERS.fullmatch(words[0]):
        verb, *remaining = [word for word in words[1:] if word != "container"] or [""]
        return _in_container(remaining) if verb in _STARTS else None
    if not _LAUNCHERS.fullmatch(words[0]):
        return None
    for i, word in enumerate(words[1:], 1):
        if _PROGRAMS.fullmatch(word):
            return Started(words[:i], _given(words[:i]), words[i:])
    return None


def scripts_of(words: list[str]) -> Iterator[tuple[str, str]]:
    """The words of a command that hold a script, each with its script.

    >>> [*scripts_of(["bash", "-c", "train.py --lr 1"])]
    [('train.py --lr 1', 'train.py --lr 1')]
    """
    for flag, word in pairwise(words):
        if _TAKES_A_SCRIPT.fullmatch(flag) and " " in word:
            yield word, word
    for word in words:
        if (script := _SCRIPT.fullmatch(word)) and " " in script[1]:
            yield word, script[1]


def _in_container(words: list[str]) -> Started:
    """The command after the image, or what the image runs with these words."""
    remaining = list(words)
    variables: dict[str, str] = {}
    entrypoint: list[str] = []
    while remaining and (remaining[0].startswith("-") or _FLAGS_ELSEWHERE.fullmatch(remaining[0])):
        flag, value = _flag(remaining)
        if flag == "--entrypoint":
            entrypoint = value.split()
        elif flag in ("-e", "--env"):
            variables |= variables_of([value])
    image, command = remaining[:1], remaining[1:]
    if image and not entrypoint:
        entrypoint = entrypoint_of(image[0], command)
    return Started([], variables, [*entrypoint, *command])


def entrypoint_of(image: str, command: list[str]) -> list[str]:
    """What an image runs with the words of a command, if these name no program."""
    if not _SERVES_VLLM.fullmatch(image) or (command and _PROGRAMS.fullmatch(command[0])):
        return []
    return ["vllm", "serve"]


def _flag(remaining: list[str]) -> tuple[str, str]:
    """Take the first flag and its value from the words of a container."""
    word = remaining.pop(0)
    if word.startswith("--"):
        flag, equals, value = word.partition("=")
        has_value = not equals and flag not in _SWITCHES
    else:
        letters = word[1:].lstrip(_SHORT_SWITCHES)
        flag, value = f"-{letters[:1]}", letters[1:]
        has_value = len(letters) == 1
    return flag, remaining.pop(0) if has_value and remaining else value


def variables_of(words: Iterable[str]) -> dict[str, str]:
    """The variables of those words that are `NAME=value`."""
    matches = filter(None, map(_VARIABLE.fullmatch, words))
    return {match[1]: match[2] for match in matches}


def _given(words: list[str]) -> dict[str, str]:
    """The variables of `env NAME=value`, `mpirun -x NAME=value`, `srun --export=ALL,NAME=value`."""
    listed = list(words)
    for flag, value in pairwise(words):
        if flag == "--export":
            listed += value.split(",")
    for word in words:
        if word.startswith("--export="):
            listed += word.removeprefix("--export=").split(",")
    return variables_of(listed)
