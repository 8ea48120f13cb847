"""The settings of the documentation: its colours can be read, and every bundle has a page."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BACKGROUNDS = {"light": ("#ffffff", "#f8f9fb"), "dark": ("#131416", "#1a1c1e")}  # of pages and sidebars in furo
AA = 4.5  # least contrast of text in WCAG 2


@pytest.fixture(scope="module")
def conf():
    """Return the settings of Sphinx."""
    pytest.importorskip("sphinx")
    spec = importlib.util.spec_from_file_location("docs_conf", ROOT / "docs" / "conf.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(first, second):
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", BACKGROUNDS)
def test_colours_can_be_read(conf, scheme):
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    colours = conf.html_theme_options[f"{scheme}_css_variables"]
    assert len(colours) == 3
    for colour in colours.values():
        assert min(contrast(colour, background) for background in BACKGROUNDS[scheme]) >= AA


def test_every_bundle_has_a_page_with_its_readme(conf):
    names = {path.name for path in (ROOT / "bundles").iterdir() if (path / "docs" / "README.md").is_file()}
    pages = {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "bundles").glob("*.md")}
    assert pages.keys() == names
    assert all(f"../../bundles/{name}/docs/README.md\n" in page for name, page in pages.items())
    listed = re.findall(r"<bundles/(\w+)>", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    assert sorted(listed) == sorted(names)


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        pytest.param("[x](docs/noise.md)", "[x](noise.md)", id="page"),
        pytest.param("[x](bundles/jsrt/docs/README.md)", "[x](bundles/jsrt.md)", id="bundle"),
        pytest.param("![x](docs/images/a.png)", "![x](images/a.png)", id="picture"),
        pytest.param("[x](LICENSE)", "x", id="no-page"),
    ],
)
def test_links_of_the_readme_lead_to_pages(conf, link, expected):
    assert conf.RELATIVE_LINK.sub(conf.relink, link) == expected
