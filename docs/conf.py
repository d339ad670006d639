"""Settings of the documentation site: `make docs` builds it into build/docs, without a network."""

from __future__ import annotations

from pathlib import Path

from sphinx.application import Sphinx

import shardwise

project = "Shardwise"
author = "the Shardwise developers"
version = release = shardwise.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
source_suffix = {".md": "markdown"}
root_doc = "index"
exclude_patterns = ["conf.py"]

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"
python_use_unqualified_type_names = True
default_role = "code"  # docstrings write code in single backticks

html_theme = "furo"
html_title = f"Shardwise {version}"
html_show_sourcelink = False
# A page's file may be in a language that the highlighter does not know.
suppress_warnings = ["misc.highlighting_failure"]

# Pages of the repository's root, whose text the site shows in place of a page's own.
ROOT_PAGES = {"architecture": "ARCHITECTURE.md", "changelog": "CHANGELOG.md"}
# Links between files of the repository -> links between pages of the site.
LINKS = {
    "](../README.md": "](index.md",
    "](../ARCHITECTURE.md": "](architecture.md",
    "](ARCHITECTURE.md": "](architecture.md",
    "](docs/playbooks)": "](playbooks/index.md)",
    "](docs/": "](",
}


def read_page(app: Sphinx, name: str, source: list[str]) -> None:
    """Take the text of a root page, and turn links between files into links between pages."""
    text = source[0]
    if name in ROOT_PAGES:
        text = (Path(__file__).parent.parent / ROOT_PAGES[name]).read_text(encoding="utf-8")
    for link, target in LINKS.items():
        text = text.replace(link, target)
    source[0] = text


def setup(app: Sphinx) -> None:
    app.connect("source-read", read_page)
