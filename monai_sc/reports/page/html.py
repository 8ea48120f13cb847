"""A report as one HTML file that needs nothing else: no network, no other file, and no script to be read."""

from __future__ import annotations

import base64
import hashlib
import io
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import Any

import matplotlib
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib.figure import Figure

from monai_sc.reports.figures import plot_changes, plot_displacements, plot_rounds

MINUS, NOTHING = "\N{MINUS SIGN}", "\N{EN DASH}"

# Takes the place of black in a figure, and becomes the colour of the text, which is light on a dark page.
INK = "#010203"
STYLE: dict[Any, Any] = {
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "axes.titlecolor", "xtick.color", "ytick.color"), INK
    ),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor", "savefig.facecolor", "legend.facecolor"), "none"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "font.size": 10,
}


def render(document: Mapping[str, Any], pictures: Sequence[Mapping[str, Any] | None], *, note: str = "") -> str:
    """Return the page of a report."""
    script = _template("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    shown = [name for name, there in _outlines(document).items() if there]
    return str(
        _environment()
        .get_template("report.html")
        .render(
            report=document,
            cases=list(zip(document["cases"], pictures, strict=True)),
            charts=_charts(document),
            places={case["id"]: place for place, case in enumerate(document["cases"], 1)},
            outlines=shown,
            redrawn=len(document["cases"]) - len(_charted(document)),
            note=note,
            style=Markup(_template("report.css")),
            script=Markup(script),
            policy=f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'",
        )
    )


def _outlines(document: Mapping[str, Any]) -> dict[str, bool]:
    cases = document["cases"]
    has_clean = any(own["size_clean"] is not None for case in cases for own in case["classes"].values())
    return {"given": True, "corrected": document["after"] == "corrected", "clean": has_clean}


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("monai_sc.reports.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(number=_number, signed=_signed, percent=_percent, amount=_amount, safe_svg=Markup)
    return environment


def _template(name: str) -> str:
    return files("monai_sc.reports.page").joinpath("templates", name).read_text(encoding="utf-8")


def _number(value: float | None, digits: int = 2) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"


def _signed(value: float | None, digits: int = 1) -> str:
    if value is None:
        return NOTHING
    hidden = 1e-9 < abs(value) < 0.5 * 10**-digits  # a length in microscopy, which is not 0
    return (f"{value:+.2g}" if hidden else f"{value:+.{digits}f}").replace("-", MINUS)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %" if value < 0.0995 else f"{100 * value:.0f} %"


def _amount(value: float | None) -> str:
    """Return a size with three digits that count."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _charted(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the cases of the charts: beside corrected labels, those of an expert say nothing of the correction."""
    return [case for case in document["cases"] if case["source"] != "clean"] or document["cases"]


def _charts(document: Mapping[str, Any]) -> dict[str, Markup]:
    names, cases = list(document["classes"]), _charted(document)
    unit = document["unit"]
    columns = {
        key: {name: [case["classes"][name][key] for case in cases] for name in names}
        for key in ("displacement", "changed")
    }
    with matplotlib.rc_context(STYLE):
        figures = {
            "displacements": (
                plot_displacements(columns["displacement"], unit=unit),
                f"Distance of the given labels from the {document['after']} ones, in {unit}, by class; a point per "
                "case.",
            ),
        }
        if document["after"] == "corrected":
            figures["changes"] = (
                plot_changes(columns["changed"]),
                "The part of every structure that changed, by class; a point per case.",
            )
        if len(document["rounds"]):
            figures["rounds"] = (
                plot_rounds(document["rounds"], names),
                "Boundary bias, and Dice of the predictions, on the clean cases in every round.",
            )
        return {name: _as_svg(figure, name, words) for name, (figure, words) in figures.items()}


def _as_svg(figure: Figure, name: str, description: str) -> Markup:
    """Return a figure as an ``<svg>`` element in the colours of the page."""
    written = io.StringIO()
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure.savefig(written, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = svg.replace(INK, "currentColor").replace("#000000", "currentColor")
    # Names that nothing refers to would repeat from chart to chart; those of markers and clips hold the salt.
    svg = re.sub(r' id="(?![mp][0-9a-f]{10}")[^"]*"', "", svg)
    box = re.search(r' viewBox="([^"]+)"', svg)
    begin = Markup('<svg viewBox="{}" role="img" aria-label="{}">').format(box[1] if box else "", description)
    return begin + Markup(svg[svg.index(">") + 1 :])
