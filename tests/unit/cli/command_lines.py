"""Command lines that nobody should type, made from the options that the verbs declare.

Each is a good command line of a verb with one to three mistakes in it. The same seed makes the same
lines.
"""

from __future__ import annotations

import importlib
import random
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

from shardwise.cli import TWO_FORM_VERBS, VERBS, locate
from shardwise.cli.command import command_of

# Verb -> a command line that works, or of a verb whose work takes long, one that ends before it.
GOOD = {
    "plan": "llama3.2-1b v5e:2x2 --train --batch 8x512",
    "plan --serve": "llama3.2-1b v5e:2x2 --serve --context 512 --batch 4",
    "fit": "llama3.2-1b v5e --serve",
    "explain": "llama3.2-1b v5e:2x2 --batch 8x512",
    "explain --serve": "llama3.2-1b v5e:2x2 --serve --context 512 --batch 4",
    "sweep": "llama3.2-1b v5e:2x2 --train --batch 8x512",
    "sweep --serve": "llama3.2-1b v5e:2x2 --serve --context 512 --batch 4",
    "export": "none.json --to maxtext",
    "import": "none.yaml llama3.2-1b v5e:2x2",
    "check": "none.json",
    "hlo": "none.txt fusion.3 --mesh data=4 --on v5e",
    "train": "none.json --data none",
    "serve": "none.json",
    "generate": "none.json hello",
    "profile": "none",
    "compare": "none.json none",
    "bench": "http://127.0.0.1:1 --rate 4/s --prompt 8 --output 4 --requests 2",
    "ui": "llama3.2-1b v5e:2x2 --batch 8x512 --port -1",
    "report": "none.json",
    "data": "tokenize none.txt --out none/tokens",
    "roofline": "llama3.2-1b v5e --op mlp.up",
    "shard": "A[I_X,J].B[J,K_Y]->C[I_X,K_Y] I=64 J=64 K=64 --mesh X=2,Y=2 --on v5e:2x2",
    "collective": "all_gather 34MB --on v5e:2x2 --axis X",
    "thresholds": "llama3.2-1b v5e",
    "ideal": "llama3.2-1b v5e:2x2",
    "hw": "v5e:2x2",
    "models": "llama3.2-1b",
    "book": "sharding-q2-1",
    "validate": "--data none.json",
    "demo": "now",
}

HOSTILE = (
    "", " ", "0", "-1", "1", "2", "1.5", "1e30", "1e3000", "nan", "inf", "-inf", "9" * 30, "0x10",
    "None", "true", "x", "=", ",", ":", "::", "*", "x=y", "x=", "=1", "a,b", "a,,b", "8x", "x8",
    "8x8x8", "0x0", "-8x512", "8x1e9", "4k", "32 k", "1M", "10s", "10", "-1s", "0s", "1e-9s",
    "20/s", "0/s", "-3/s", "20/h", "1e6/s", "50%", "120%", "-5%", "p0", "p99", "p99.99", "p100",
    "🦙", "llama3-8b🦙", "l l a m a 3 8 b", "１２", "é", "\u202e", "a" * 300, "%s%n", "${HOME}",
    "\\", "'", '"', "<b>", "\x1b[31m", "[", "]", "{}", "--", "-", "/", ".", "..", "/nonexistent/x",
    "/dev/null", "none/plan.json", "none.toml", "v5e", "v5e:", "v5e:0", "v5e:2x2*0", "v5e-16",
    "8xh100", "h100:8.5", "m1:128", "h100:8,hbm=-1GB", "cpu:8", "gpt2", "llama3.2-1b,n_layers=0",
    "bf16", "int4", "fp64", "int8,int8", "adamw", "none", "auto", "all", "full,none", "tensor=8",
    "tensor=0", "tensor=3", "tensor=2,tensor=2", "fsdp=1e9", "zero=9", "schedule=1f1b",
    "remat=half", "ici x0", "ici x0.5", "hbm x1e9", "1-8*2", "8-1*2", "1-1e9+1", "1,2", "1,1", "md",
    "csv", "xml", "poisson", "bursty:99", "off", "memory", "mlp.down", "sharding", "99", "X=2",
)  # fmt: skip

# Values that mean nothing: a command line that has one cannot be answered.
NONSENSE = ("", " ", "🦙", "\u202e", "\\", "'", '"', "<b>", "\x1b[31m", "::", "llama3-8b🦙")
SLOW_WORDS = ("measure", "--all")  # what they ask for takes long
# Without this word, the verb works for long.
ENDING = {"demo": "now", "validate": "none.json", "ui": "-1"}


@cache
def verbs() -> tuple[str, ...]:
    """Every verb; those for training and serving twice."""
    return tuple(GOOD)


@cache
def options(verb: str) -> dict[str, bool]:
    """The names of the options of a verb -> whether a value follows."""
    word, *form = verb.split()
    _, module = locate(word, form)
    names = {}
    for param in command_of(importlib.import_module(module).run).params:
        if param.param_type_name == "option":
            for name in (*param.opts, *param.secondary_opts):
                names[name] = not param.is_flag
    return names


def _value(rng: random.Random, verb: str) -> str:
    """A hostile value, or a word of another verb's command line."""
    if rng.random() < 0.85:
        return rng.choice(HOSTILE)
    return rng.choice(GOOD[rng.choice(verbs())].split())


def _set_option(rng: random.Random, verb: str, words: list[str]) -> None:
    name, has_value = rng.choice(list(options(verb).items()))
    if has_value and rng.random() < 0.2:
        words.append(f"{name}={_value(rng, verb)}")
    else:
        words.append(name)
        if has_value:
            words.append(_value(rng, verb))


def _set_nonsense(rng: random.Random, verb: str, words: list[str]) -> None:
    names = [name for name, has_value in options(verb).items() if has_value]
    if names:
        words += [rng.choice(names), rng.choice(NONSENSE)]


def _repeat_option(rng: random.Random, verb: str, words: list[str]) -> None:
    names = [name for name, has_value in options(verb).items() if has_value and name in words[:-1]]
    if names:
        name = rng.choice(names)
        words += [name, words[words.index(name) + 1]]


def _change_value(rng: random.Random, verb: str, words: list[str]) -> None:
    if words:
        words[rng.randrange(len(words))] = _value(rng, verb)


def _drop_word(rng: random.Random, verb: str, words: list[str]) -> None:
    if words:
        del words[rng.randrange(len(words))]


def _add_word(rng: random.Random, verb: str, words: list[str]) -> None:
    words.insert(rng.randrange(len(words) + 1), _value(rng, verb))


def _repeat_word(rng: random.Random, verb: str, words: list[str]) -> None:
    if words:
        words.append(rng.choice(words))


def _set_option_of_another(rng: random.Random, verb: str, words: list[str]) -> None:
    _set_option(rng, rng.choice(verbs()), words)


MISTAKES: tuple[Callable[[random.Random, str, list[str]], Any], ...] = (
    *(4 * [_set_option]),
    *(3 * [_change_value]),
    *(2 * [_set_nonsense]),
    _repeat_option,
    _drop_word,
    _add_word,
    _repeat_word,
    _set_option_of_another,
)


def command_lines(seed: int, count: int) -> Iterator[list[str]]:
    """`count` command lines, as lists of words."""
    rng = random.Random(seed)
    made = 0
    while made < count:
        verb = rng.choice(verbs())
        words = GOOD[verb].split()
        for _ in range(rng.choice((1, 1, 2, 3))):
            rng.choice(MISTAKES)(rng, verb, words)
        if ENDING.get(verb, "") in ("", *words) and not any(word in SLOW_WORDS for word in words):
            made += 1
            yield [verb.split()[0], *words]


def forms() -> set[str]:
    """The verbs that a fuzzer has to know."""
    return {*VERBS, *(f"{verb} --serve" for verb in TWO_FORM_VERBS)}
