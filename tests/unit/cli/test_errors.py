"""Every mistake gets its words and its exit code. A row: the command, the code, what is said."""

from __future__ import annotations

import builtins
import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from shardwise.models import presets
from tests.golden.terminal import run

PLAN = "plan llama3-70b v5p:16x20x28 --train --batch 1120x4096"
SMALL = "plan llama3.2-1b v5e:2x2 --train --batch 8x1024"
PIPED = "plan llama3-8b h100:16 --train --batch 64x2048"
SHARD = "shard 'A[I_X,J] . B[J,K_Y] -> C[I_X,K_Y]'"
ROOF = "roofline 'bf16[B,D] x bf16[D,F] -> bf16[B,F]'"

# Exact first lines end with a newline; others are a part of what is said.
BAD = [
    # the command line itself
    ("plam", 2, '✗ unknown verb "plam". Close: "plan", "explain". shardwise --help lists them.\n'),
    ("improve plan.json", 2, '✗ unknown verb "improve".'),
    # training
    (
        "train plan.json",
        2,
        "✗ plan.json: No such file or directory.\n"
        "✗ no data is given: --data DIR, made by: shardwise data tokenize.\n",
    ),
    ("train none.json --data d", 2, "✗ none.json: No such file or directory."),
    ("data tokenize", 2, "✗ write: shardwise data tokenize INPUT... --out DIR.\n"),
    ("data tokenize no.txt", 2, "✗ no folder is given for the tokens: --out DIR.\n"),
    ("data tokenize no.txt --out d", 2, '✗ no file or folder "no.txt".\n'),
    ("data tokenize no.txt --out d --end x", 2, "✗ --end names a token of --tokenizer FILE;"),
    ("data show d", 2, "✗ write: shardwise data tokenize"),
    ("hw measure", 2, "✗ hw measure takes the number of devices: shardwise hw measure 2.\n"),
    ("hw v5e -o x", 2, "✗ -o saves a measured chip: shardwise hw measure 2 -o host.toml.\n"),
    ("plan", 2, "✗ Missing argument 'MODEL'. shardwise plan --help lists the options.\n"),
    ("plan llama3-70b", 2, "✗ Missing argument 'HARDWARE'."),
    (f"{PLAN} --tensor 8", 2, "No such option: --tensor. Size an axis by --fix tensor=N."),
    (f"{PLAN} --tp 8", 2, "No such option: --tp. Size an axis by --fix tensor=N."),
    ("check plan.json --tp 8", 2, "✗ No such option: --tp (Possible options: --help)."),
    (f"{PLAN} more", 2, "Got unexpected extra argument(s) (more)"),
    ("plan llama3-70b v5p:4x4x4 --train --batch", 2, "Option '--batch' requires an argument."),
    ("fit llama3-70b v5e --bach 3", 2, "Possible options: --batch"),
    # models
    (PLAN.replace("70b", "70x"), 2, '✗ unknown model "llama3-70x". Close: "llama3-70b", '),
    ("models nonsense", 2, '✗ unknown model "nonsense". '),
    ("models ''", 2, '✗ unknown model "". Known: '),
    ("models llama3-70b,n_kv_head=1", 2, '✗ unknown model field "n_kv_head". Close: "n_kv_heads"'),
    ("models llama3-70b,n_kv_heads=0", 2, '✗ n_kv_heads "0" is below 1.\n'),
    ("models llama3-70b,n_kv_heads=7", 2, "does not divide n_heads 64"),
    ("models llama3-70b,d_ff=1e99", 2, "above 2,147,483,647"),
    ("models llama3-70b,n_layers", 2, 'has no "=". Write FIELD=VALUE'),
    ("models llama3-70b,n_experts=8", 2, "llama3-70b has no experts."),
    ("models llama3-70b extra", 2, "✗ models takes one model, not 2.\n"),
    ("models llama3-70b --kv --flops", 2, "✗ --kv and --flops are two tables. Ask for one of"),
    ("models --kv", 2, "✗ --kv and --flops need a model: shardwise models llama3-70b --kv.\n"),
    ("models llama3-70b --kv --dtype bf17", 2, '✗ unknown dtype "bf17". Close: "bf16"'),
    ("models llama3-70b --kv --dtype int8,int8", 2, "✗ dtype int8 is given twice.\n"),
    ("models llama3-70b --flops --seq 0", 2, '✗ seq "0" is below 1.\n'),
    ("models llama3-70b --flops --seq -5", 2, '✗ seq "-5" is negative.\n'),
    ("models llama3-70b --flops --seq 8.5", 2, '✗ seq "8.5" is not a whole number.\n'),
    # hardware
    ("hw v5", 2, '✗ unknown chip "v5". Close: "v5e", "v5p", "v4", "v3". List: shardwise hw\n'),
    ("hw v5e:4x16", 2, "✗ no slice v5e:4x16: v5e is rented only in the listed shapes. Nearest: "),
    ("hw v5p:5x5x5", 2, "slices are 1x1x1, 2x2x1, 2x2x2, 2x2x4, 2x4x4, or made of whole 4x4x4"),
    ("hw v5p:4x4", 2, "2 dimensions, and the torus of v5p has 3."),
    ("hw v5e:16", 2, "gives a number of chips, and a torus needs a shape: v5e:4x4."),
    ("hw v5e:0x4", 2, "has a dimension of 0. The smallest is 1.\n"),
    ("hw v5e:-4x4", 2, 'size "-4x4" is not a shape. Write whole numbers joined by x: 4x4.'),
    ("hw v5e:4xx4", 2, 'size "4xx4" is not a shape.'),
    ("hw v5e:99999x99999", 2, "more than any machine that exists."),
    ("hw h100:12", 2, "✗ 12 GPUs do not fill domains of 8: the last one would hold 4. Nearest: 8"),
    ("hw h100:4x4", 2, "has no torus. Write the number of chips: h100:16.\n"),
    ("hw h100:8*2", 2, "h100 has no slices over DCN (*)"),
    ("hw v5e:4x4,hbm=16", 2, "✗ hbm 16 has no unit. 16GB = 1.6e+10 bytes, 16GiB = 1.718e+10"),
    ("hw v5e:4x4,hbm=-1GB", 2, 'hbm "-1GB" is negative.'),
    ("hw v5e:4x4,memory=16GB", 2, 'unknown option of the hardware "memory".'),
    ("hw h100:8,ici=45GB/s", 2, "h100 has no ici links."),
    ("hw v5e v5p", 2, "✗ hw takes one chip or system, or diff A B, not 2 words.\n"),
    ("hw diff v5e", 2, "✗ hw diff compares two chips, and 1 are given: hw diff v5p h100.\n"),
    (
        "hw diff v5x h10",
        2,
        '✗ unknown chip "v5x". Close: "v5p", "v5e". List: shardwise hw\n✗ unknown',
    ),
    ("hw --slices", 2, "✗ --slices needs a chip: shardwise hw v5e --slices.\n"),
    ("hw h100 --slices", 2, "✗ h100 is not joined in a torus. Write a number of chips.\n"),
    ("hw ./nothere.toml", 2, "✗ no file nothere.toml.\n"),
    # plan
    ("plan llama3-70b v5p --train --batch 8x4096", 2, "✗ v5p needs a size: v5p:1x1x1, v5p:2x2x1"),
    ("plan llama3-8b cpu --train --batch 8x4k", 2, "✗ cpu has no figures. shardwise hw measure 2"),
    ("hw h100:8.5", 2, '✗ "8.5" is not a number of chips. Write a whole number, as h100:8.\n'),
    ("hw a800x8", 2, '✗ unknown chip "a800". Close: "a100". An A800 is an A100 with 400 GB/s of'),
    ("hw v4-7", 2, '✗ "v4-7" is 3.5 chips (7 TensorCores, 2 a chip), and no slice of v4 has as'),
    ("hw v5e-12", 2, '✗ "v5e-12" is 12 chips, and no slice of v5e has as many. Nearest: v5e:2x2'),
    ("hw a100-40", 2, '✗ "a100-40" may be a number of chips or of gigabytes. Write a100:40, or'),
    ("hw m1:128", 2, "✗ m1:128 has no links: no public source says how several m1 are joined."),
    ("plan llama3-70b v5p:4x4x4 --batch 64x4096", 2, "✗ what to plan is not said. Add --train or"),
    ("plan llama3-70b v5p:4x4x4 --train", 2, "✗ no batch is given. Add --batch SEQUENCESxLENGTH"),
    (f"{PLAN} --serve", 2, "✗ --train and --serve are different work. Ask for one of"),
    (PLAN.replace("1120x4096", "1120"), 2, '✗ batch "1120" is not SEQUENCESxLENGTH. Write 1024x'),
    (PLAN.replace("1120x4096", "0x4096"), 2, '✗ batch sequences "0" is below 1.\n'),
    (PLAN.replace("1120x4096", "-8x4096"), 2, '✗ batch sequences "-8" is negative.\n'),
    (PLAN.replace("1120x4096", "8x1e30"), 2, "is not between 1 and 2,147,483,648."),
    (PLAN.replace("1120x4096", "8-64*2x4096"), 2, 'batch sequences "8-64*2": "-64*2" is not a'),
    (f"{PLAN} --tokens -15T", 2, '✗ tokens "-15T" is negative.\n'),
    (f"{PLAN} --tokens 15X", 2, '"X" is not a multiplier. Use k, M, B, T or Ki, Mi, Gi.\n'),
    (f"{PLAN} --tokens 1e40", 2, "is not between 1 and 1e18."),
    (f"{PLAN} --tokens many", 2, '✗ tokens "many" is not a number.'),
    (f"{PLAN} --dtype bf61", 2, '✗ unknown dtype "bf61". Close: "bf16", '),
    (f"{PLAN} --dtype tf32", 2, "✗ v5p has no figure for the dense peak at tf32. Known: bf16 459"),
    (f"{PLAN} --optimizer adam", 2, '✗ unknown optimizer "adam". Close: "adamw".\n'),
    (
        f"{PLAN} --remat half",
        2,
        '✗ unknown remat policy "half". Known: "auto", "dots", "full", "mlp", "none", "norms".\n',
    ),
    (f"{PLAN} --top 0", 2, '✗ --top "0" is below 1.\n'),
    (f"{PLAN} --top 1000", 2, "✗ --top 1,000 is more than 100, which is as many as can be read.\n"),
    (f"{PLAN} --top two", 2, '✗ --top "two" is not a number.'),
    (
        f"{PLAN} --mesh tenor=8",
        2,
        '✗ unknown setting "tenor". Close: "tensor", "expert_tensor".\n',
    ),
    (f"{PLAN} --mesh tensor8", 2, '✗ "tensor8" is not NAME=SIZE.'),
    (f"{PLAN} --mesh tensor=8,tensor=4", 2, "✗ setting tensor is given twice.\n"),
    (f"{PLAN} --mesh tensor=0", 2, '✗ setting tensor "0" is below 1.\n'),
    (f"{PLAN} --mesh tensor=8", 2, "✗ tensor 8 is 8 chips; v5p:16x20x28 has 8,960.\n"),
    (f"{PLAN} --mesh tensor=12,fsdp=8", 2, "✗ tensor 12 does not divide: n_heads 64 (/12 = 5.3)"),
    (f"{PLAN} --mesh pipe=2", 2, "✗ pipe 2 is 2 chips; v5p:16x20x28 has 8,960.\n"),
    (f"{PLAN} --mesh fsdp=8 --fix tensor=2", 2, "✗ --mesh gives the whole split, --fix and --max"),
    (f"{PLAN} --mesh fsdp=8 --max tensor=2", 2, "✗ --mesh gives the whole split, --fix and --max"),
    (f"{PLAN} --fix tensor=3", 2, "✗ tensor 3 leaves 8,960 / 3 = 2986.67 chips for the other axes"),
    (f"{PLAN} --fix expert=2", 2, "✗ expert 2: llama3-70b has no experts to shard; leave it"),
    (f"{PLAN} --fix pipe=224", 2, "✗ pipe 224: 80 layers leave 144 of 224 places in equal stages"),
    (f"{PLAN} --fix schedule=1f2b", 2, '✗ unknown schedule "1f2b". Close: "1f1b".\n'),
    (
        f"{PLAN} --fix schedule",
        2,
        '✗ unknown schedule "". Known: "1f1b", "dualpipe", "gpipe", "interleaved"',
    ),
    (f"{PLAN} --fix remat=half", 2, '✗ unknown remat "half". Known: '),
    (f"{PLAN} --fix context_kind=rings", 2, '✗ unknown context_kind "rings". Close: "ring".\n'),
    (f"{PLAN} --fix zero=4", 2, "✗ zero 4 is not a stage of ZeRO: 0, 1, 2 or 3.\n"),
    (f"{PLAN} --fix virtual=0", 2, 'virtual "0" is below 1.\n'),
    (f"{PLAN} --fix virtual=2,virtual=4", 2, "virtual is given twice.\n"),
    (f"{PLAN} --fix schedule=1f1b,schedule=zb-v", 2, "schedule is given twice.\n"),
    (f"{PLAN} --max tensor=0", 2, '✗ mesh axis tensor "0" is below 1.\n'),
    (
        f"{PLAN} --max zero=1",
        2,
        '✗ unknown mesh axis "zero". Known: "context", "data", "expert", "fsdp"',
    ),
    (f"{PLAN} --max schedule=1f1b", 2, "✗ "),
    (f"{PLAN} --reduce int7", 2, '✗ unknown dtype "int7". Close: "int8"'),
    (f"{PLAN} --overlap tp", 2, '✗ unknown overlap "tp". Close: "tp_comm".\n'),
    (
        f"{PLAN} --offload weights",
        2,
        '✗ unknown offload "weights". Known: "activations", "optimizer"',
    ),
    (f"{PIPED} --mesh pipe=4,data=4,zero=9", 2, "✗ zero 9 is not a stage of ZeRO: 0, 1, 2 or 3.\n"),
    (f"{PIPED} --fix fsdp=4,zero=1", 3, "Leave fsdp and zero free, or choose other sizes."),
    (f"{PIPED} --fix pipe=4,n_microbatches=2,schedule=zb-v", 3, "n_microbatches 2, schedule zb-v."),
    (f"{PIPED} --fix pipe=4 --max pipe=2", 3, "pipe 4, pipe at most 2."),
    (
        "plan llama3-8b v5p:4x4x52 --train --batch 64x4096",
        3,
        "--batch 78x4096 (+21.9%), or v5p:8x8",
    ),
    ("plan llama3-70b v5e:2x2 --train --batch 4x4096", 3, "✗ does not fit: llama3-70b on v5e:2x2"),
    ("plan llama3-8b cpu:8 --train --batch 8x128", 2, "cpu has no figure for "),
    (f"{SMALL} -o .", 2, "✗ . is a folder, and not a file. Nothing was saved.\n"),
    (f"{SMALL} -o no/such/folder/plan.json", 2, "✗ no/such/folder/plan.json: No such file or"),
    # fit
    ("fit llama3-70b v5:4x2,hbm=16", 2, '✗ unknown chip "v5". Close: "v5e", "v5p", "v4"'),
    ("fit llama3-70b v5e --train --serve", 2, "✗ --train and --serve hold different things."),
    ("fit llama3-70b v5e --dtype bf16,int7", 2, '✗ unknown dtype "int7". Close: "int8"'),
    ("fit llama3-70b v5e --kv-dtype int7", 2, '✗ unknown dtype "int7". Close: "int8"'),
    (
        "fit llama3-70b h100 --train --dtype bf16,fp8",
        2,
        "✗ --train takes one dtype; bf16,fp8 are 2",
    ),
    ("fit llama3-70b v5e --context 0", 2, '✗ context "0" is below 1.\n'),
    ("fit llama3-70b v5e --context 1e30", 2, "is not between 1 and 2,147,483,648."),
    ("fit llama3-70b v5e --batch -1", 2, '✗ batch "-1" is negative.\n'),
    ("fit llama3-70b wse3", 2, "✗ wse3 has no figure for hbm.capacity: no public source gives it."),
    ("fit llama3.1-405b v5e:4x4", 3, "✗ Smallest that fit: bf16 v5e:8x8 (64 chips)."),
    ("fit megatron-1t v2 --train", 3, "✗ does not fit: megatron-1t in bf16 holds weights 2.02 TB"),
    # roofline
    ("roofline", 2, "✗ Missing argument"),
    (f"{ROOF} B=1 D=2 F=3", 2, "✗ no chip is given. Add --on CHIP, as --on v5e.\n"),
    (f"{ROOF} --on v5e B=1 D=2", 2, "✗ dim F has no size. Give F=1024.\n"),
    (f"{ROOF} --on v5e B=1 D=2 F=3 G=4", 2, '✗ unknown dim "G". Known: "B", "D", "F".\n'),
    (f"{ROOF} --on v5e B D=2 F=3", 2, '✗ "B" is not NAME=SIZE.'),
    (f"{ROOF} --on v5e B=1 B=2 D=2 F=3", 2, "✗ dim B is given twice.\n"),
    (f"{ROOF} --on v5e B=0 D=2 F=3", 2, '✗ dim B "0" is below 1.\n'),
    (f"{ROOF} --on v5e B=8-1*2 D=2 F=3", 2, '✗ dim B "8-1*2" goes down: 8 is above 1.'),
    (f"{ROOF} --on v5e B=1-9*1 D=2 F=3", 2, '✗ dim B "1-9*1" does not grow: a factor is 2'),
    (f"{ROOF} --on v5e B=1-1e9+1 D=2 F=3", 2, "has over 1,000 values. Take larger steps.\n"),
    (f"{ROOF} --on v5e B=1-8*2 D=1-8*2 F=3", 2, "✗ dims B, D all have ranges. Give a range to"),
    (f"{ROOF} --on v5x B=1 D=2 F=3", 2, '✗ unknown chip "v5x". Close: "v5p", "v5e".'),
    (f"{ROOF} --on wse3 B=1 D=2 F=3", 2, "✗ wse3 has no figure for the dense peak at bf16."),
    (f"{ROOF} --on v5e --op mlp.up B=1 D=2 F=3", 2, "✗ --op mlp.up names an operation of a model"),
    (f"{ROOF} --on v5e --compute bf17 B=1 D=2 F=3", 2, '✗ unknown dtype "bf17". Close: "bf16"'),
    ("roofline 'bf16[B,D] bf16[D,F]' --on v5e B=1", 2, "is not a matmul with dtypes. Write it as"),
    ("roofline 'bf17[B,D] x bf16[D,F] -> bf16[B,F]' --on v5e", 2, '✗ unknown dtype "bf17".'),
    ("roofline llama3-70b", 2, "✗ llama3-70b: write MODEL CHIP --op mlp.up, or a matmul in quotes"),
    ("roofline llama3-70b v5e", 2, "✗ no operation is given. Add --op NAME, as --op mlp.up.\n"),
    ("roofline llama3-70b v5e --op mlp.upp", 2, '✗ unknown operation of llama3-70b "mlp.upp".'),
    ("roofline llama3-70b v5e --op mlp.up --batch x", 2, '✗ batch "x" is not a number.'),
    # shard
    (f"{SHARD} --on v5e:4x4 --mesh X=4,Y=4", 2, "✗ dim I has no size. Give I=1024.\n✗ dim K"),
    (f"{SHARD} --mesh X=4 I=8 J=8 K=8", 2, "✗ no machine is given. Add --on HARDWARE, as --on "),
    (f"{SHARD} --on v5e:4x4 --mesh X=4 I=8 J=8 K=8", 2, "✗ mesh axis Y has no size. Give --mesh "),
    (f"{SHARD} --on v5e:4x4 --mesh X=3,Y=5 I=8 J=8 K=8", 2, "✗ 3 x 5 = 15 does not divide the 16"),
    (f"{SHARD} --on v5e:4x4 --mesh X=-4,Y=4 I=8 J=8 K=8", 2, '✗ mesh axis X "-4" is negative.\n'),
    (f"{SHARD} --on v5e:4x4 --mesh X=4,Y=4 I=8 J=8 K=8k9", 2, '"k9" is not a multiplier.'),
    (f"{SHARD} --on v5e:4x4 --mesh X=4,Y=4 I=1e30 J=8 K=8", 2, "is not between 1 and "),
    (f"{SHARD} --on v5e --mesh X=4,Y=4 I=8 J=8 K=8", 2, "✗ v5e needs a size: v5e:1x1, v5e:2x2"),
    (f"{SHARD} --on v5e:4x4 --mesh X=4,Y=4 --dtype i8 I=8", 2, '✗ unknown dtype "i8".'),
    (
        "shard 'A[I_X,J_X] . B[J,K] -> C[I,K]' --on v5e:4x4",
        2,
        "✗ A[I_X,J_X] uses mesh axis X twice",
    ),
    (
        "shard 'A[I_X,J] . B[J,K_X] -> C[I_X,K_X]' --on v5e:4x4 --mesh X=4 I=8 J=8 K=8",
        2,
        "✗ C[I_X,K_X] uses mesh axis X twice: each chip would hold only blocks where both dims",
    ),
    ("shard 'A[I,J] . B[J,K]' --on v5e:4x4", 2, "needs one arrow to its output. Write it as A[I_X"),
    ("shard 'A[I,J] -> C[I]' --on v5e:4x4", 2, "has 1 arrays before the arrow, not 2."),
    ("shard 'A(I,J) . B[J,K] -> C[I,K]' --on v5e:4x4", 2, "is not an array. Write it as A[I_X,J]"),
    (
        "shard 'A[I,J] . B[J,K] -> C[I,L]' --on v5e:4x4",
        2,
        "✗ C[I,L] has dim L, which neither input has.\n",
    ),
    # book and demo
    (
        "book sharding-q2-11",
        2,
        '✗ unknown case or chapter "sharding-q2-11". Close: "sharding", "sharding-q2-1"',
    ),
    ("book 99", 2, '✗ unknown case or chapter "99".'),
    ("book sharding --all", 2, "✗ --all solves every case; leave sharding out, or --all.\n"),
    ("demo now", 2, "Got unexpected extra argument(s) (now)"),
    # any verb: a name that no file can have
    (
        f"data tokenize {'a' * 5000} --out none",
        2,
        f"✗ {'a' * 40}... is 5,000 characters: File name too long.\n",
    ),
]


@pytest.mark.parametrize(("command", "code", "said"), BAD, ids=[row[0][:60] for row in BAD])
def test_bad_input(command: str, code: int, said: str) -> None:
    done = run(*shlex.split(command))
    assert done.code == code
    assert done.out == ""
    assert done.err.startswith("✗ ")
    flat = done.err.replace("\n  ", " ")
    if said.endswith("\n") and said.startswith("✗ ") and said.count("\n") == 1:
        assert flat.splitlines()[0] == said.strip()
    assert said in flat
    assert "Traceback" not in done.err
    assert all(len(line) <= 80 for line in done.err.splitlines() if " " in line.strip())


def test_there_are_many() -> None:
    assert len(BAD) >= 70


def test_all_problems_at_once() -> None:
    done = run("plan", "llama9", "v9:4x4", "--batch", "x", "--mesh", "a=b", "--top", "-1")
    assert done.code == 2
    assert done.err.count("✗ ") == 6


# Files: what is written into a folder, and what is said about it.
FILES: list[tuple[str, dict[str, str], str]] = [
    ("config.json", {"config.json": "{"}, "config.json"),
    ("config.json", {"config.json": "[1, 2]"}, "config.json"),
    ("config.json", {"config.json": "{}"}, 'neither "model_type" nor "architectures"'),
    ("config.json", {"config.json": '{"model_type": "llamma"}'}, 'architecture "llamma" is not kn'),
    ("config.json", {"config.json": '{"model_type": "llama"}'}, "missing key hidden_size."),
    ("config.json", {"config.json": "\x00\x01"}, "config.json"),
    ("empty", {"empty/readme.txt": ""}, "config.json"),
    ("not/there", {}, "not/there"),
]


@pytest.mark.parametrize(("path", "files", "said"), FILES, ids=range(len(FILES)))
def test_bad_model_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: str, files: dict[str, str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    done = run("models", f"./{path}")
    assert done.code == 2
    assert done.err.startswith("✗ ")
    assert said in done.err.replace("\n  ", " ")


CHIPS = [
    ("name = ", "cannot be read as TOML"),
    ('name = "x"', "kind is missing."),
    ("[hbm]\ncapacity = 16", "hbm.capacity has no source."),
    ('[hbm]\ncapacity = { value = 16, source = "s", as_of = "2025-01" }', "no unit."),
]


@pytest.mark.parametrize(("text", "said"), CHIPS)
def test_bad_chip_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.toml").write_text(text)
    done = run("hw", "./my.toml")
    assert done.code == 2
    assert said in done.err.replace("\n  ", " ")


def test_a_folder_in_place_of_a_chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("my.toml").mkdir()
    done = run("hw", "./my.toml")
    assert (done.code, done.err) == (2, "✗ my.toml is a folder; a chip is one TOML file.\n")


@pytest.mark.parametrize("command", ["models ./config.json", "hw ./my.toml"])
def test_no_permission(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    # Root reads everything, so the refusal of the system is played.
    monkeypatch.chdir(tmp_path)
    for name in ("config.json", "my.toml"):
        Path(name).write_text("")

    def refuse(*args: Any, **kwargs: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(builtins, "open", refuse)
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "read_text", refuse)
    monkeypatch.setattr(Path, "read_bytes", refuse)
    done = run(*command.split())
    assert done.code == 2
    assert "ermission" in done.err


def test_errors_as_json() -> None:
    done = run("hw", "v5", "--json")
    document = json.loads(done.out)
    assert document == {
        "error": {
            "type": "UnknownName",
            "problems": ['unknown chip "v5". Close: "v5e", "v5p", "v4", "v3". List: shardwise hw'],
            "exit_code": 2,
        }
    }
    assert done.err.startswith("✗ unknown chip")


def test_no_plan_as_json() -> None:
    done = run(*shlex.split(f"{PIPED} --fix fsdp=4,zero=1 --json"))
    assert done.code == json.loads(done.out)["error"]["exit_code"] == 3


def test_without_the_sign() -> None:
    done = run("hw", "v5", encoding="ascii")
    assert done.err == 'x unknown chip "v5". Close: "v5e", "v5p", "v4", "v3". List: shardwise hw\n'


def test_what_was_typed_cannot_drive_the_terminal() -> None:
    done = run("models", "a\x1b[31mb\udcff")
    assert "\x1b" not in done.err
    assert '"a?[31mb?"' in done.err


def test_presets_are_never_called_a_mistake() -> None:
    assert all(run("models", name, "--json").code == 0 for name in presets.names()[:5])


def test_a_source_that_cannot_be_predicted_says_why() -> None:
    said = run("validate", "--source", "PaLM")
    assert said.code == 3
    told = " ".join(said.err.split())
    assert "✗ 1 row: v4 has no figure for dcn.bandwidth" in told
