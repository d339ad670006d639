"""`shardwise check` on the command line: plans, functions in the folder one is in, mistakes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import jax
import numpy as np
import pytest

import shardwise as sw
from shardwise.check import training
from shardwise.check.compiling.job import Job
from shardwise.check.user import api
from shardwise.check.user.entry_point import load_attribute
from tests.golden.terminal import run
from tests.unit.check.compilers import needs

SMALL = "n_layers=2,d_model=256,d_ff=512,n_heads=4,n_kv_heads=2,d_head=64,vocab=512"

MINE = """
import jax, jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec as P

def train_step(w, x):
    with jax.named_scope("encoder"):
        return jnp.sum(jnp.tanh(x @ w))

def train_step_args():
    mesh = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    on = lambda *axes: NamedSharding(mesh, P(*axes))
    w = jax.ShapeDtypeStruct((256, 512), jnp.float32, sharding=on(None, "model"))
    x = jax.ShapeDtypeStruct((128, 256), jnp.float32, sharding=on("data"))
    return w, x

def wide_args():
    mesh = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((8, 8), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return x, x

constant = 3

def wrong(w, x):
    return jnp.tanh(
        w @ x.T @ w.T @ w)  # dims that do not match

def misnamed_args():
    mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
    x = jax.ShapeDtypeStruct((6, 8), jnp.float32)
    return x, x

def misnamed(w, x):
    mesh = AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,))
    return jax.lax.with_sharding_constraint(x, NamedSharding(mesh, P("rows")))  # no axis

def update(w, x):
    return w - 0.1 * x

def update_args():
    mesh = AbstractMesh((2, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
    on = NamedSharding(mesh, P("data", "model"))
    return (jax.ShapeDtypeStruct((16384, 16384), jnp.float32, sharding=on),) * 2
"""


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "mymodule.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDWISE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def built_here(mine: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The builder of the compiling process runs in this one, where it has to refuse.

    This process has one device, which stands for all of the machine.
    """
    monkeypatch.setattr(api, "compile_job", _refused)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("mymodule", None)


def _refused(job: Job, **_: object) -> NoReturn:
    devices = np.full(job.target.grid, jax.devices()[0])
    load_attribute(job.builder)(devices, **job.arguments)
    raise AssertionError("nothing is refused")


@needs("cpu")
def test_a_function_of_the_folder_one_is_in(mine: Path) -> None:
    said = run("check", "mymodule:train_step", "--on", "cpu:4")
    assert (said.code, said.err) == (0, "")
    assert said.out.startswith("mymodule:train_step on cpu:4 compiles with XLA's CPU compiler")
    assert "data 2 x model 2" in said.out
    assert "  encoder" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    document = json.loads(run("check", "mymodule:train_step", "--on", "cpu:4", "--json").out)
    assert document["flops_by_scope"] == {"encoder": 2 * 128 * 256 * 512 / 4}
    assert document["collectives"][0]["kind"] == "all_reduce"


def line_with(words: str) -> int:
    (number,) = [i for i, line in enumerate(MINE.splitlines(), 1) if words in line]
    return number


@needs("cpu")
@pytest.mark.parametrize(
    ("name", "args", "comment"),
    [
        ("wrong", "train_step_args", "# dims that do not match"),
        ("misnamed", "misnamed_args", "# no axis"),
    ],
)
def test_an_error_in_a_function_comes_with_its_line(
    mine: Path, name: str, args: str, comment: str
) -> None:
    said = run("check", f"mymodule:{name}", "--args", f"mymodule:{args}", "--on", "cpu:4")
    assert said.code == 2
    message = said.err.replace("\n  ", " ")
    assert "cannot be traced" in message
    assert f"at mymodule.py:{line_with(comment)}:" in message


@needs("tpu")
def test_a_fault_is_named_in_the_first_line(mine: Path) -> None:
    said = run("check", "mymodule:update", "--on", "v5e:2x2")
    assert said.code == 0
    assert said.out.startswith("Not donated: 256 MiB of w may be reused in place.")
    document = json.loads(run("check", "mymodule:update", "--on", "v5e:2x2", "--json").out)
    (fault,) = document["faults"]
    assert (fault["kind"], fault["arguments"], fault["bytes"]) == ("not donated", ["w"], 2**28)
    assert document["compiled"]["output_bytes"] == 2**28
    assert document["compiled"]["alias_bytes"] == 0
    (result,) = document["results"]
    assert result == {"path": "", "shape": "float32[16384,16384]", "spec": [["data"], ["model"]]}


@needs("cpu")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("nomodule:train_step", "--on", "cpu:4"), 'no module "nomodule"'),
        (("mymodule.py", "--on", "cpu:4"), "Name one: mymodule.py:FUNCTION"),
        (("mymodule.py:nothing", "--on", "cpu:4"), 'has no "nothing"'),
        pytest.param(
            ("mymodule:nothing", "--on", "cpu:4"), 'has no "nothing"', marks=pytest.mark.oracle
        ),
        (("mymodule:constant", "--on", "cpu:4"), "is not a function"),
        (("mymodule:wide_args", "--on", "cpu:4"), "--args module:function"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("built_here")
def test_what_is_wrong_with_a_function(args: tuple[str, ...], words: str) -> None:
    refused(*args, words=words)


@needs("cpu")
def test_a_mesh_of_another_size_is_refused_by_the_compiling_process(mine: Path) -> None:
    refused(
        *("mymodule:train_step", "--on", "cpu:4", "--args", "mymodule:wide_args"), words="mesh of 8"
    )


def refused(*args: str, words: str) -> None:
    said = run("check", *args)
    assert said.code == 2
    assert words in said.err.replace("\n  ", " ")
    assert "Traceback" not in said.err


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("a:b",), "Add --on"),
        (("a:b", "--on", "v5e:9x9x9"), "v5e"),
        (("a:b", "--on", "cpu:4", "--fix"), "--fix is for plans"),
        (("a:b", "--on", "cpu:4", "--collectives", "compiler"), "--collectives is for plans"),
        (("plan.json", "--collectives", "gspmd"), 'unknown chooser of collectives "gspmd"'),
        (("plan.json", "--args", "a:b"), "--args is for a function"),
        (("plan.json", "--save", "x.json"), "Add --fix"),
        (("plan.json", "--fix", "--save", "nowhere/x.json"), "there is no folder nowhere"),
        (("plan.json", "--timeout", "60"), '--timeout "60" has no unit'),
        (("plan.json", "--memory", "much"), "--memory"),
        (("plan.json", "--layers", "2"), "write two numbers"),
        (("plan.json", "--layers", "2,1"), "the smaller first"),
        (("nothing.json",), "nothing.json"),
    ],
)
def test_options_that_do_not_go_together(args: tuple[str, ...], words: str) -> None:
    said = run("check", *args)
    assert said.code == 2
    assert words in said.err.replace("\n  ", " ")


@needs("cpu")
def test_a_plan_on_the_compiler_that_stands_in(mine: Path) -> None:
    model = sw.model(f"llama3-8b,{SMALL}")
    plan = sw.plan(model, sw.hardware("mi300x:4"), sw.Train(batch=8, seq=32), {"fsdp": 4})
    plan.save("plan.json")
    said = run("check", "plan.json")
    assert (said.code, said.err) == (0, "")
    assert "memory and time are not checked" in said.out.replace("\n", " ")
    assert max(map(len, said.out.splitlines())) <= 80
    refused = run("check", "plan.json", "--trace", "step.json")
    assert refused.code == 2
    assert "gives no timeline" in refused.err


@needs("tpu")
def test_a_trace_into_no_folder_is_refused_before_the_compile(
    mine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_plan(mine)
    monkeypatch.setattr(api, "compile_job", no_compile)
    monkeypatch.setattr(training, "compile_job", no_compile)
    for subject in (("plan.json",), ("mymodule:train_step", "--on", "v5e:2x2")):
        said = run("check", *subject, "--trace", "nowhere/step.json")
        assert said.code == 2
        assert "there is no folder nowhere" in said.err


def no_compile(*args: object, **more: object) -> None:
    raise AssertionError("it was compiled")


def save_plan(folder: Path) -> None:
    model = sw.model(f"llama3-8b,{SMALL}")
    plan = sw.plan(model, sw.hardware("v5e:2x2"), sw.Train(batch=8, seq=32), {"fsdp": 4})
    plan.save(str(folder / "plan.json"))


@needs("tpu")
@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--timeout", "1us"), "takes longer than 1.00 us"),
        (("--memory", "1MB"), "takes more than 977 KiB of this machine's memory"),
    ],
)
def test_a_limit_that_ends_the_compile_is_no_answer(
    mine: Path, args: tuple[str, str], words: str
) -> None:
    save_plan(mine)
    said = run("check", "plan.json", *args)
    assert (said.code, said.out) == (5, "")
    message = said.err.replace("\n  ", " ")
    assert words in message
    assert f"Give it more with {args[0]}" in message


def test_no_fix_of_a_serving_plan(mine: Path) -> None:
    job = sw.Serve(context=256, batch=8)
    sw.plan(sw.model(f"llama3-8b,{SMALL}"), sw.hardware("v5e:2x2"), job).save("plan.json")
    said = run("check", "plan.json", "--fix")
    assert said.code == 2
    assert "--fix is for training plans" in said.err
