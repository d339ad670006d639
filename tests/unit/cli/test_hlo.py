"""`shardwise hlo`: the operations of the book's chapter on profiling, plans, and mistakes."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.book.case import find
from shardwise.check.compiling.result import Compiled
from shardwise.check.explained import of_plan
from shardwise.report.style import MAX_COLUMNS
from tests.golden.terminal import run

ROOT = Path(__file__).parents[1] / "check"
OWN = ROOT / "explained" / "programs"
KEPT = ROOT / "hlo" / "programs"
FFW = str(OWN / "ffw_v2.txt")


def answer(*args: str) -> dict:
    said = run("hlo", *args, "--json")
    assert said.code == 0, said.err
    return json.loads(said.out)


def text(*args: str) -> str:
    """The screen in one line."""
    said = run("hlo", *args)
    assert said.code == 0, said.err
    assert all(len(line) <= MAX_COLUMNS for line in said.out.splitlines())
    return " ".join(said.out.split())


def test_the_line_of_the_book_is_read() -> None:
    said = text(str(OWN / "fusion_line.txt"))
    assert "%fusion.3 is a fusion, whose computation the text does not have." in said
    assert "bf16[32,32,4096]{2,1,0:T(8,128)(2,1)S(1)}: 8.39 MB, no padding, in VMEM" in said
    assert "%fusion.32 bf16[32,32,8192]{2,1,0:T(8,128)(2,1)S(1)}: 16.8 MB, no" in said
    assert "dim 2 is minor, then 1, 0 (row-major); tiles of 8 × 128 over dims 1 and 2" in said
    assert "(2,1) packs 2 rows into words of 32 bits" in said
    assert "0 B of HBM traffic" in said


def test_the_groups_of_the_book_are_8_way() -> None:
    line = str(OWN / "reduce_scatter_line.txt")
    said = text(line)
    assert "groups of 8 with stride 16, the first {0,16,32,48,64,80,96,112}" in said
    assert "8-way, the first axis of a mesh 8 × 16" in said
    assert "the mesh axis model of model=8, data=16" in text(line, "--mesh", "model=8,data=16")
    reordered = text(line, "--mesh", "data=16,model=8")
    assert "the mesh axis model of model=8, data=16, the last axis fastest (in the" in reordered
    other = text(line, "--mesh", "data=32,model=4")
    assert "no whole axes of data=32, model=4" in other
    assert "as a mesh of their own: 8-way" in other


def test_the_matmul_and_the_reduce_scatter_of_the_book_take_its_times() -> None:
    matmul = answer(FFW, "%fusion.1", "--on", "v2")["bound"]
    assert matmul["bound"] == "compute"
    case = find("profiling-ffw-time")
    assert matmul["seconds"] == pytest.approx(case.expected, rel=case.tolerance_rel)
    scatter = answer(FFW, "reduce", "--on", "v2", "--mesh", "data=4,model=2")
    case = find("profiling-reduce-scatter")
    n_bytes, seconds = case.expected
    assert scatter["collectives"][0]["bytes"] == pytest.approx(n_bytes, rel=case.tolerance_rel)
    assert scatter["collectives"][0]["devices"]["axes"] == ["model"]
    assert scatter["bound"]["bound"] == "network"
    assert scatter["bound"]["seconds"] == pytest.approx(seconds, rel=case.tolerance_rel)


def test_the_local_shapes_of_the_book() -> None:
    product = answer(FFW, "fusion.1")["products"][0]
    activations, weights, tokens = find("profiling-local-shapes").expected
    assert product["operands"] == [
        f"bf16[{','.join(map(str, activations))}]",
        f"bf16[{','.join(map(str, weights))}]",
    ]
    assert tokens == 8 * 1024


def test_the_padding_of_the_book() -> None:
    copied = answer(FFW, "scale")
    small_tiles, large_tiles = copied["results"][0], copied["operands"][0]
    shape, growth = find("profiling-tiling").expected
    assert small_tiles["tiled_dims"] == shape
    assert small_tiles["padded_bytes"] / small_tiles["bytes"] == pytest.approx(growth)
    assert (large_tiles["tiled_dims"], large_tiles["padded_bytes"]) == ([8, 128], 4096)
    said = text(FFW, "scale")
    assert "60.0 B, padded to 4 × 6: 96.0 B (+60.0 %), in HBM" in said
    assert "60.0 B, padded to 8 × 128: 4.10 kB (+6,727 %), in HBM" in said


def test_the_largest_operations_and_those_of_a_prefix() -> None:
    said = text(FFW)
    assert "4 operations on 8 devices" in said
    assert "%fusion.1 1 2.20 TFLOP 50 % mlp.up forward" in said
    assert "%reduce-scatter.1 1 134 MB 100 % ReduceScatter mlp.down forward" in said
    listed = answer(FFW, "fus")
    assert listed["names"] == ["fusion.1", "fusion.2"]
    assert [row["name"] for row in listed["by_flops"]] == ["fusion.1", "fusion.2"]
    assert "2 operations whose names begin with fus." in text(FFW, "fus")


def test_an_operation_without_a_name_of_the_model_has_its_line(tmp_path: Path) -> None:
    program = tmp_path / "own.txt"
    program.write_text("""HloModule jit_f, is_scheduled=true

FileNames
1 "models/own.py"

FunctionNames
1 "f"

FileLocations
1 {file_name_id=1 function_name_id=1 line=4 end_line=4 column=9 end_column=18}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


ENTRY %main (x: f32[64,32], w: f32[32,16]) -> f32[64,16] {
  %x = f32[64,32]{1,0} parameter(0)
  %w = f32[32,16]{1,0} parameter(1)
  ROOT %dot.1 = f32[64,16]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}, \
metadata={op_name="jit(f)/dot_general" stack_frame_id=1}
}
""")
    assert "%dot.1 1 65.5 kFLOP 100 % dot_general own.py:4" in text(str(program))


def test_the_einsum_is_named() -> None:
    assert 'model mlp.up, forward einsum "BTD,DF->BTF"' in text(FFW, "fusion.1")


def test_programs_of_compilers() -> None:
    jit = str(KEPT / "jit_v5e.hlo.gz")
    fused = text(jit, "fusion.25", "--mesh", "fsdp=2,tensor=2", "--on", "v5e")
    assert "%fusion.25 is a fusion of a convolution and an AllGather." in fused
    assert "between %async-collective-start and" in fused
    assert 'einsum "BD,DF->BF"' in fused
    assert "at least 43.6 us on a device of v5e, compute binds" in fused
    ring = str(KEPT / "ring_v5e.hlo.gz")
    started = text(ring, "collective-permute-start", "--mesh", "context=4", "--on", "v5e")
    assert "the mesh axis context of context=4" in started
    assert "4 times in a run of the program" in started
    assert "is the wait for what %collective-permute-start starts" in text(
        ring, "collective-permute-done"
    )
    assert "a loop of 3 trips" in text(str(KEPT / "decode_v5e.hlo.gz"), "while")
    assert "AllToAll" in text(str(KEPT / "moe_gpu.hlo.gz"), "all-to-all-start.1", "--on", "h100")


@pytest.mark.parametrize("path", sorted(KEPT.glob("*_v5e.hlo.gz")), ids=lambda path: path.name)
def test_every_operation_of_a_program_is_explained(path: Path) -> None:
    from shardwise.check.explained.program import read_program
    from shardwise.check.explained.search import find as find_operation
    from shardwise.report.hlo.operation import blocks

    program = read_program(str(path), {}, sw.chip("v5e"))
    names = [op.instruction.name for op in program.ops]
    for name in names[:: max(1, len(names) // 40)]:
        assert list(blocks(find_operation(program, name)))


@pytest.fixture
def plan_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A plan, whose program is a kept one: compiling takes long."""
    plan = sw.plan(sw.model("llama3.2-1b"), sw.hardware("v5e:2x2"), sw.Train(batch=8, seq=512))
    path = tmp_path / "plan.json"
    plan.save(path)

    def compiled(job: object, **_: object) -> Compiled:
        from shardwise.check.compiling.result import Memory, Place
        from shardwise.check.compiling.targets import Target

        assert isinstance(job.target, Target)
        return Compiled(
            name="step",
            target=job.target,
            mesh={"fsdp": 2, "tensor": 2},
            places=tuple(Place(coords=(x, y, 0)) for x in (0, 1) for y in (0, 1)),
            hlo_gz=(KEPT / "train_v5e.hlo.gz").read_bytes(),
            memory=Memory(arguments=0, output=0, alias=0, temporaries=0, peak=0),
            cost={},
            options={},
            versions={},
            lower_s=0.0,
            compile_s=0.0,
            rss_bytes=0,
            constraints=(),
        )

    monkeypatch.setattr(of_plan, "compile_job", compiled)
    return str(path)


def test_a_plan_brings_its_mesh_its_chip_and_its_einsums(plan_path: str) -> None:
    assert "the train step of llama3.2-1b on v5e:2x2: 143 operations" in text(plan_path)
    said = text(plan_path, "fusion.283")
    assert "mlp.up, remat: x[B,T,D] . w_up[D,F_tensor] -> up[B,T,F_tensor]" in said
    assert "on a device of v5e" in said
    scattered = text(plan_path, "reduce_scatter.129")
    assert "the mesh axis fsdp of fsdp=2, tensor=2" in scattered
    assert "the collective on" in scattered


BAD = [
    (["nothing.txt"], "nothing.txt: No such file"),
    (["."], "is a folder"),
    (["notes.txt"], "notes.txt is no HLO text: no line starts with HloModule"),
    (["stable.txt"], "lowered.compile().as_text()"),
    (["torn.txt"], "torn.txt: the text of the compiled program has no ENTRY"),
    (["wrong.txt"], "wrong.txt: unbalanced brackets"),
    (["cut.txt"], "cut.txt: %fusion.2 names %down, which the text does not have"),
    (["odd.txt"], "odd.txt is malformed HLO"),
    (["torn.gz"], "torn.gz: "),
    ([FFW, "fusoin.1"], '"fusion.1"'),
    ([FFW, "--mesh", "data=4"], "--mesh data=4 is 4 devices"),
    ([FFW, "--on", "v99"], '"v99"'),
    (["nothing.json", "--mesh", "data=4"], "a plan has its mesh and its machine"),
]


@pytest.mark.parametrize(("args", "part"), BAD)
def test_bad_input(
    args: list[str], part: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("Nothing of XLA's.\n")
    Path("stable.txt").write_text("module @jit_f attributes {} {\n}\n")
    Path("torn.txt").write_text(Path(FFW).read_text()[:1900])
    Path("wrong.txt").write_text(Path(FFW).read_text().replace("fusion(%x.1, %w.1)", "fusion((("))
    Path("cut.txt").write_text(Path(FFW).read_text().replace("%down (h", "%other (h"))
    Path("odd.txt").write_text(Path(FFW).read_text().replace("dot(%a, %b)", "dot()"))
    Path("torn.gz").write_bytes(gzip.compress(b"HloModule x" * 99)[:-9])
    said = run("hlo", *args)
    assert said.code == 2
    assert part in " ".join(said.err.split())


def test_a_text_that_is_not_divided_yet_is_of_all_devices(tmp_path: Path) -> None:
    """Before the compiler partitions a program, its arrays are whole."""
    text = (
        "HloModule jit_f, num_partitions=8\n\n"
        "ENTRY %main (x: f32[64,64]) -> f32[64,64] {\n"
        "  %x = f32[64,64]{1,0} parameter(0)\n"
        "  ROOT %dot.1 = f32[64,64]{1,0} dot(%x, %x), lhs_contracting_dims={1}, "
        "rhs_contracting_dims={0}\n}\n"
    )
    path = tmp_path / "whole.txt"
    path.write_text(text)
    whole = run("hlo", str(path))
    assert whole.code == 0, whole.err
    assert "of all 8 devices in one run: the compiler has not divided" in whole.out
    path.write_text(text.replace("jit_f,", "jit_f, is_scheduled=true,"))
    assert "of one device in one run of the program" in run("hlo", str(path)).out
