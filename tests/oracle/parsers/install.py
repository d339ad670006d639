"""Unpack the Python part of frameworks' wheels, whose parsers need neither GPUs nor the rest.

    python tests/oracle/parsers/install.py requirements/parsers.txt .venv/parsers

Compiled files, most of a wheel's bytes, stay behind. Each wheel gets a folder of its own, as some
have top-level packages of the same name. All machines take the same wheels, by their hashes.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PLATFORM = [
    "--platform", "manylinux_2_28_x86_64", "--platform", "manylinux_2_34_x86_64",
    "--python-version", "3.11", "--only-binary", ":all:", "--ignore-requires-python",
]  # fmt: skip
SUFFIXES = (".py", ".yml", ".yaml")


def install(lock: Path, folder: Path) -> None:
    """Download what `lock` names and unpack it into folders `folder`/NAME.

    Raises:
        CalledProcessError: a wheel cannot be downloaded, or has another hash.
    """
    shutil.rmtree(folder, ignore_errors=True)
    with tempfile.TemporaryDirectory() as wheels:
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
        options = ["--no-deps", "--require-hashes", "-r", str(lock), "-d", wheels]
        subprocess.run([*command, *options, *PLATFORM], check=True)
        for wheel in sorted(Path(wheels).glob("*.whl")):
            with zipfile.ZipFile(wheel) as archive:
                names = [name for name in archive.namelist() if name.endswith(SUFFIXES)]
                archive.extractall(folder / wheel.name.partition("-")[0], names)


if __name__ == "__main__":
    install(Path(sys.argv[1]), Path(sys.argv[2]))
