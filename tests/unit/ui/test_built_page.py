"""The built page is that of the sources beside it."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

STATIC = Path("src/shardwise/ui/static")


def test_the_page_was_built_from_these_sources(root: Path) -> None:
    """page/build.mjs writes the same hash; a difference means that it has to be run."""
    sources = hashlib.sha256()
    for path in sorted((root / "page" / "src").iterdir()):
        sources.update(path.name.encode() + path.read_bytes())
    banner = (root / STATIC / "page.js").read_text("utf-8").partition("\n")[0]
    built = re.search(r"sources ([0-9a-f]{64})\.", banner)
    assert built
    assert built[1] == sources.hexdigest()


def test_the_frame_of_html_is_copied_as_it_is(root: Path) -> None:
    source = root / "page" / "src" / "index.html"
    assert (root / STATIC / "index.html").read_bytes() == source.read_bytes()
