"""Settings of Sphinx."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path
from typing import Any

README = Path(__file__).parents[1] / "README.md"
BUNDLE_README = re.compile(r"bundles/(\w+)/docs/README\.md")
RELATIVE_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!https?:|#)([^)\s]+)\)")

project = "monai_sc"
author = "The monai_sc authors"
copyright = author  # noqa: A001 - the name is Sphinx's
release = metadata.version("monai-sc")

# The formulas are drawn by a script that comes with the pages: they are read from disk, without a network.
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx-mathjax-offline"]
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"monai_sc {release}"
# The teal of MONAI's own documentation, dark or light enough for text (WCAG AA: 4.5 to 1).
html_theme_options = {
    "light_css_variables": {
        "color-brand-primary": "#00677f",
        "color-brand-content": "#00677f",
        "color-brand-visited": "#4b5c8f",
    },
    "dark_css_variables": {
        "color-brand-primary": "#4ec3d6",
        "color-brand-content": "#4ec3d6",
        "color-brand-visited": "#9db4e6",
    },
}

myst_enable_extensions = ["deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_default_options = {"members": True}
autodoc_inherit_docstrings = False  # what MONAI and ignite say of their methods stands in their own reference
autodoc_typehints_format = "short"
MONAI_UNIONS = ("KeysCollection", "NdarrayOrTensor", "PathLike")
autodoc_type_aliases = {name: name for name in MONAI_UNIONS}  # the name, instead of what it stands for
python_maximum_signature_line_length = 100
python_use_unqualified_type_names = True

nitpicky = True  # a reference to something of ours that does not exist is an error
PACKAGES = ("collections", "ignite", "matplotlib", "monai", "numpy", "pathlib", "rich", "torch", "typing_extensions")
nitpick_ignore_regex = [
    (r"py:.*", rf"(TypeAliasForwardRef|Path|.*GridParameters|{'|'.join(MONAI_UNIONS)}|({'|'.join(PACKAGES)})\..*)"),
]


def skip_aliases(app: Any, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """List a class once, and not under ``FooD`` and ``FooDict`` again."""
    return True if isinstance(obj, type) and name != obj.__name__ else None


def relink(link: re.Match[str]) -> str:
    """Return a link of README.md as it is from here; the links to what is no page here become plain text."""
    mark, text, target = link.groups()
    if target.startswith("docs/"):
        return f"{mark}[{text}]({target.removeprefix('docs/')})"
    if bundle := BUNDLE_README.fullmatch(target):
        return f"{mark}[{text}](bundles/{bundle[1]}.md)"
    return f"![{text}](../{target})" if mark else text


def begin_with_readme(app: Any, docname: str, source: list[str]) -> None:
    """Put README.md at the top of the front page."""
    if docname == "index":
        app.env.note_dependency(str(README))
        source[0] = RELATIVE_LINK.sub(relink, README.read_text(encoding="utf-8")) + "\n" + source[0]


def setup(app: Any) -> None:
    """Connect the hooks above."""
    app.connect("autodoc-skip-member", skip_aliases)
    app.connect("source-read", begin_with_readme)
