"""`make docs-refresh`: run every page and write what comes out into it. Read the diff after."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

from tests.docs import pages

ROOT = Path(__file__).resolve().parent.parent.parent


def main() -> None:
    """Refresh the pages named on the command line, or all."""
    os.environ.update(NO_COLOR="1", COLUMNS="80", TERM="dumb")
    chosen = [Path(name).resolve() for name in sys.argv[1:]] or pages.pages(ROOT)
    for path in chosen:
        before = path.read_text()
        with tempfile.TemporaryDirectory() as folder:
            examples = pages.run_page(before, Path(folder))
        after = pages.refreshed(before, examples)
        stale = sum(not example.agrees for example in examples)
        print(f"{path.relative_to(ROOT)}: {len(examples)} examples, {stale} rewritten")
        if stale:
            path.write_text(after)


if __name__ == "__main__":
    main()
