"""Whatever things are called, a report has the same elements and attributes, and its tables hold no formula."""

import csv
import io
import json
import os
import re
from html.parser import HTMLParser

import nibabel as nib
import numpy as np
import pytest

from monai_sc.benchmark.cells import CellResult
from monai_sc.benchmark.summary import Run, summarise
from monai_sc.benchmark.tables import write_tables
from monai_sc.folders import audit_folder, correct_folder
from monai_sc.reports import write_audit, write_report
from monai_sc.reports.page import open_source, write_page
from monai_sc.reports.page.contents import Contents, Finding
from monai_sc.reports.page.measures import PageCase
from monai_sc.reports.spreadsheet import csv_text
from monai_sc.store import LabelStore

from .conftest import HOSTILE, ball, record

WORDS = {
    "elements": '<img src=x onerror="alert(1)"></text></svg><svg onload="alert(1)"><!-- --><![CDATA[ ]]>',
    "attributes": "\" onmouseover=\"alert(1)\" x='' autofocus onfocus='alert(1)",
    "ends": "</script></style></title></head><body onload=alert(1)><script>alert(1)</script>",
    "entities": "&lt;b&gt; &#60;script&#62; {{ 7 * 7 }}{% raw %}\\g<0>\\1 $x^$",
}


class Structure(HTMLParser):
    """The elements of a page with the names of their attributes, in order; and what scripts and styles hold."""

    def __init__(self, text):
        super().__init__()
        self.found, self.code, self.tag = [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, *sorted(name for name, _ in attributes)))
        self.tag = tag

    def handle_endtag(self, tag):
        self.found.append(f"/{tag}")
        self.tag = None

    def handle_data(self, data):
        if self.tag in ("script", "style"):
            self.code.append(data)

    def handle_comment(self, data):
        self.found.append("comment")


def outside_of_charts(structure):
    """Return the elements without those of charts: matplotlib draws lines and dots as the text has room."""
    kept, depth = [], 0
    for element in structure.found:
        depth += element[0] == "svg"
        if depth == 0 or element[0] == "svg":
            kept.append(element)
        depth -= element == "/svg"
    return kept


class Told:
    """A source of which every word is given."""

    def __init__(self, word):
        self.word = word
        mask, smaller = ball((40, 44), 8), ball((40, 44), 5)
        self.case = PageCase(word, None, mask, smaller, smaller, (1.0, 1.0), True, source=word)

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self.case

    def contents(self):
        word = self.word
        finding = Finding(word, word, -1.0, [-2, 0], 3, word, 0.0, [0, 0], word, dice={word: 0.5}, notes=[word, word])
        return Contents(
            title=word,
            headline=word,
            unit=word,
            size_unit=word,
            subject=word,
            after="corrected",
            findings=[finding],
            rounds=[{**record(0, -1.0), "bias": [-1.0], "bias_interval": [[-2, 0]], "clean_dice": [0.8]}],
            kept_round=0,
            stop_reason=word,
            recovered=0.5,
            skipped={word: word},
            provenance={word: word},
            undo=f"python {word}",
        )


def page_of(source, out):
    return write_page(source, out, progress=False).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    return Structure(page_of(Told("plain"), tmp_path_factory.mktemp("plain")))


@pytest.mark.parametrize("word", WORDS.values(), ids=WORDS)
def test_words_of_a_source_add_no_element_and_no_attribute(tmp_path, plain, word):
    text = page_of(Told(word), tmp_path)
    found = Structure(text)
    assert outside_of_charts(found) == outside_of_charts(plain)
    assert found.code == plain.code
    assert {name for element in found.found for name in element[1:]} <= {
        name for element in plain.found for name in element[1:]
    }
    assert not re.search(r"<[^>]* on\w+=", re.sub(r'"[^"]*"', '""', text))


def labels_of(folder, name):
    """Write labels, clean labels and predictions of two cases, of which one is called ``name``."""
    for k, case in enumerate(["plain", name]):
        for kind, radius in (("labels", 8.0 + k), ("clean", 6.0 + k)):
            write(folder / kind / f"{case}.nii.gz", ball((40, 44, 3), radius, [20, 22, 1])[0].astype(np.uint8))
        distance = np.sqrt(((np.indices((40, 44, 3)) - np.reshape([20, 22, 1], (3, 1, 1, 1))) ** 2).sum(axis=0))
        write(folder / "predictions" / f"{case}.nii.gz", (8 + k - distance).astype(np.float32))
    return folder


def write(file, values):
    file.parent.mkdir(parents=True, exist_ok=True)
    nib.save(nib.Nifti1Image(values, np.diag([1.0, 1, 2, 1])), file)


NAMES = {  # as a file can be called
    "element": HOSTILE,
    "others": "\" onload='x' $x^$ _{\\ <script> =`x` \t",
    "not-unicode": os.fsdecode(b"x\xff"),
}


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_names_of_files_and_folders_add_no_element(tmp_path, name):
    pages = []
    for case, folder in (("other", tmp_path / "plain"), (name.encode("ascii", "ignore").decode(), tmp_path / name)):
        labels_of(folder, case)
        arguments = folder / "labels", folder / "clean"
        correct_folder(
            *arguments, folder / "corrected", predictions=folder / "predictions", kind="logits", progress=False
        )
        names = {"class_names": [case]}
        write_audit(audit_folder(*arguments, **names, progress=False), *arguments, folder / "audit")
        pages.append([page_of(open_source(folder / kind), folder / kind) for kind in ("corrected", "audit")])
    for plain, hostile in zip(*pages, strict=True):
        assert outside_of_charts(Structure(hostile)) == outside_of_charts(Structure(plain))


def test_words_of_a_training_add_no_element(tmp_path, make_store):
    pages = []
    for word, name in (("plain", "other"), ("</script>" + WORDS["attributes"], "<b onclick=x>\"'")):
        folder = tmp_path / name
        folder.mkdir()
        store = make_store(folder, "2d")
        cases = [case | {"id": f"{name}{k}"} for k, case in enumerate(store.cases)]
        store = LabelStore(folder / "labels", cases, class_names=[name, f"{name}2"])
        store.skipped = {name: word}
        history = [record(0, -3.0), record(1, -0.2, word)]
        history[0]["correction"] = {name: {"existence": {"rule": {"feature": word, "threshold": 2}}}}
        page = write_report(store, history, folder / "run", settings={word: word, "x": {word: [word]}}, progress=False)
        pages.append(Structure(page.read_text(encoding="utf-8")))
    assert outside_of_charts(pages[1]) == outside_of_charts(pages[0])
    assert pages[1].code == pages[0].code


FORMULAS = ["=1+1", "+1", "-1", "@x", "\t=1", " =1", "\n=1", '=cmd|"/c calc"!A0']


def is_formula(cell):
    """Say whether a spreadsheet may compute a cell that is no number."""
    try:
        float(cell)
    except ValueError:
        return cell.strip().startswith(("=", "+", "-", "@"))
    return False


@pytest.mark.parametrize("name", FORMULAS)
def test_name_that_a_spreadsheet_would_compute_gets_an_apostrophe(name):
    assert list(csv.reader(io.StringIO(csv_text([["case", name], [name, -0.5]]), newline=""))) == [
        ["case", f"'{name}"],
        [f"'{name}", "-0.5"],
    ]


def test_numbers_and_other_names_stay_as_they_are():
    rows = [["a", "b=1"], ["'=1", None], [-1.5, float("nan")], [True, "lung, left"], ["a\rb", "a\r=b"]]
    assert csv_text(rows) == 'a,b=1\n\'=1,\n-1.5,\nTrue,"lung, left"\na b,a =b\n'


@pytest.mark.parametrize("name", ["=1+1", "-x", "@sum(1)"])
def test_tables_hold_no_formula(tmp_path, name):
    page_of(Told(name), tmp_path / "page")
    runs = [Run(name, name, 0, CellResult((name,), ("a",), np.array([[0.5]])))]
    write_tables(tmp_path, runs, summarise(runs, against=name), {"bundle": "$x^$"})
    for file in (tmp_path / "page" / "report_cases.csv", tmp_path / "results.csv"):
        with file.open(newline="", encoding="utf-8") as table:
            cells = [cell for row in csv.reader(table) for cell in row]
        assert f"'{name}" in cells
        assert not [cell for cell in cells if is_formula(cell)]
    data = json.loads((tmp_path / "page" / "report_data.json").read_text(encoding="utf-8"))
    assert data["cases"][0]["id"] == name
