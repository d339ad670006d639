"""The built page is that of the sources in page/src."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

STATIC = Path("src/shardwise/ui/static")


def test_the_built_page_is_that_of_its_sources(root: Path) -> None:
    digest = hashlib.sha256()
    for source in sorted((root / "page" / "src").iterdir()):
        digest.update(source.name.encode())
        digest.update(source.read_bytes())
    banner = (root / STATIC / "page.js").read_text(encoding="utf-8")[:300]
    match = re.search(r"sources (\w{64})", banner)
    assert match
    assert match[1] == digest.hexdigest(), "node page/build.mjs builds it anew"


def test_the_page_names_no_other_server(root: Path) -> None:
    for name in ("index.html", "page.css"):
        assert "://" not in (root / STATIC / name).read_text(encoding="utf-8")
