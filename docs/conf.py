"""How `make docs` builds the documentation: Sphinx, MyST for Markdown, Furo for the look. Nothing comes from a CDN."""

import os
import re
from importlib.metadata import version as installed
from pathlib import Path

project = "ThiefBench"
author = "The ThiefBench maintainers"
project_copyright = "The ThiefBench maintainers, Apache-2.0"
version = release = installed("thiefbench")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]

# Links to headings go by GitHub's names for them, so that the same link works there and on the site.
myst_heading_anchors = 4
myst_links_external_new_tab = False
# Blocks with an ellipsis or a shell's continuation are no tokens of their language; they are shown all the same.
suppress_warnings = ["misc.highlighting_failure"]
highlight_language = "none"

# Docstrings write code in single backticks and follow Google's style.
default_role = "code"
napoleon_numpy_docstring = False
napoleon_use_ivar = True
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
smartquotes = False  # what stands in quotes is mostly to be typed
python_use_unqualified_type_names = True
add_module_names = False

html_theme = "furo"
html_title = "ThiefBench"
html_static_path = ["_static"]
html_css_files = ["thiefbench.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sourcelink = False
html_copy_source = False

HERE = Path(__file__).parent
ROOT = HERE.parent
MODELS = (
    "micro-math",
    "micro-math-small",
    "micro-math-changes",
    "micro-math-totals",
    "micro-code",
    "micro-programs",
    "micro-judge",
    "micro-judge-hardened",
)
# Pages whose text lies elsewhere in the repository. In docs/ they are one line that says where, for readers of the
# files; on the site they are that text.
ELSEWHERE = {
    "results": ROOT / "RESULTS.md",
    "changelog": ROOT / "CHANGELOG.md",
    "contributing": ROOT / "CONTRIBUTING.md",
    "board": ROOT / "leaderboard/README.md",
    "entries": ROOT / "leaderboard/entries/README.md",
    "shared-cells": ROOT / "leaderboard/shared/README.md",
    **{f"models/{name}": ROOT / "bench/zoo" / name / "README.md" for name in MODELS},
}
_MARK = re.compile(r"(?<![*\\])[*|](?!\*)(?=\S)|(?<=\w)_(?!\w)")
_LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s#]+)")


def text_of_page(app, docname, source):
    """Put in the text that lies elsewhere, and let links lead to pages of the site."""
    file = ELSEWHERE.get(docname, HERE / f"{docname}.md")
    if docname in ELSEWHERE:
        app.env.note_dependency(str(file))
        source[0] = file.read_text(encoding="utf-8")
    pages = {path.resolve(): HERE / f"{name}.md" for name, path in ELSEWHERE.items()}

    def led(link):
        target = (file.parent / link[1]).resolve()
        return os.path.relpath(pages.get(target, target), (HERE / docname).parent)

    source[0] = _LINK.sub(led, source[0])


def plain_marks(app, what, name, obj, options, lines):
    """Docstrings are plain text with code in backticks: a lone * or | is no markup."""
    for number, line in enumerate(lines):
        parts = line.split("`")
        parts[::2] = [_MARK.sub(r"\\\g<0>", part) for part in parts[::2]]
        lines[number] = "`".join(parts)


def setup(app):
    """Connect what is above."""
    app.connect("source-read", text_of_page)
    app.connect("autodoc-process-docstring", plain_marks)
