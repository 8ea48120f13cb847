import csv
import json
import re
import shutil
from html import unescape
from html.parser import HTMLParser
from pathlib import Path

import nibabel as nib
import numpy as np
import pytest
from PIL import Image

from monai_sc.folders import audit_folder, correct_folder
from monai_sc.reports import plot_rounds, summarise_run, write_audit, write_report
from monai_sc.reports.audit import check_audit_folder
from monai_sc.reports.figures import shown_name
from monai_sc.reports.page import RunSource, open_source, write_page
from monai_sc.reports.page.contents import Finding, bias_found
from monai_sc.reports.page.html import MINUS, NOTHING, _charted, _signed
from monai_sc.reports.shown_cases import find_image


class Elements(HTMLParser):
    """The elements of a page; all but the void ones must be closed in order."""

    VOID = ("meta", "input", "br", "link")

    def __init__(self, text):
        super().__init__()
        self.open, self.found = [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def source_of(store, history):
    return RunSource(store, summarise_run(store, history), store.root.parent)


@pytest.fixture
def page(store, history, tmp_path):
    return write_page(source_of(store, history), tmp_path / "out", progress=False)


def test_page_is_wellformed_and_names_are_unique(page):
    elements = Elements(page.read_text(encoding="utf-8")).found
    ids = [attributes["id"] for _, attributes in elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    links = [attributes["href"][1:] for tag, attributes in elements if tag == "a"]
    assert set(links) <= set(ids)
    assert len([a for tag, a in elements if tag == "article" and a.get("class") == "case"]) == 5


def test_page_needs_nothing_else(page):
    text = page.read_text(encoding="utf-8")
    elements = Elements(text).found
    for tag, attributes in elements:
        assert tag not in ("link", "iframe", "object", "embed", "base")
        assert "src" not in attributes
        for key in ("href", "xlink:href"):
            assert attributes.get(key, "#").startswith(("#", "data:image/"))
        assert not [key for key in attributes if key.startswith("on")]
    assert "url(http" not in text
    assert "@import" not in text


def test_names_of_cases_are_escaped(page, store):
    text = page.read_text(encoding="utf-8")
    assert "<img" not in text
    assert "&lt;img src=x onerror=&#34;alert(1)&#34;&gt;&amp;" in text
    assert not any(attributes.get("src") == "x" for _, attributes in Elements(text).found)


def test_verdict_comes_first_and_says_what_was_done(page):
    text = re.sub(r"<[^>]+>", " ", page.read_text(encoding="utf-8").split("<main>")[1])
    words = " ".join(unescape(text).split())
    disc, ghost = words.index("disc biased"), words.index("ghost cannot tell")
    assert disc < ghost < words.index("To check by hand") < words.index("Cases, most changed first")
    assert "\N{MINUS SIGN}1.5 mm (\N{MINUS SIGN}1.8 to \N{MINUS SIGN}1.2 mm) , too large, from 4 clean cases" in words
    assert "the network's boundaries moved inwards by 1.5 mm in round 1" in words
    assert "labels given" in words
    assert "python -m monai_sc restore" in words


def test_data_and_table_hold_the_same_numbers(page, store, tmp_path):
    data = json.loads((page.parent / "report_data.json").read_text(encoding="utf-8"))
    assert data["schema"] == "monai_sc report 1"
    assert data["classes"]["disc"]["bias"] == -1.5
    assert data["classes"]["ghost"]["bias"] is None
    assert data["classes"]["disc"]["dice"]["labels given"] < data["classes"]["disc"]["dice"]["labels corrected"]
    changed = [case["changed"] for case in data["cases"]]
    assert changed == sorted(changed, reverse=True)
    assert changed[0] > changed[-1]
    with (page.parent / "report_cases.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 10
    assert {row["case"] for row in rows} == {case["id"] for case in store.cases}
    assert float(rows[0]["changed"]) == data["cases"][0]["classes"]["disc"]["changed"]
    entries = {entry["case"]: entry["voxels_changed"] for entry in store.manifest(1)}
    assert all(int(row["voxels_changed"]) == entries[row["case"]][row["class"] == "ghost"] for row in rows)


def test_pictures_that_do_not_fit_are_left_out(store, history, tmp_path):
    source = source_of(store, history)
    sizes = []
    for megabytes in (9, 0.002, 0):
        page = write_page(source, tmp_path / "out", megabytes=megabytes, progress=False)
        text = page.read_text(encoding="utf-8")
        sizes.append(text.count("data:image/webp"))
        assert ("Too large for a page are the pictures of " in text) == (megabytes < 1)
        drawn = sum(
            len(picture) for picture in re.findall(r"<svg viewBox[^>]*aria-hidden.*?</svg>", text) if "data:" in picture
        )
        assert drawn <= megabytes * 1e6
    assert sizes[0] >= 5 > sizes[-1] == 0


def test_run_without_a_correction(store, history, tmp_path):
    store.restore(0)
    page = write_page(source_of(store, history), tmp_path / "out", progress=False)
    data = json.loads((page.parent / "report_data.json").read_text(encoding="utf-8"))
    assert "No correction was kept" in data["headline"]
    assert data["classes"]["disc"]["done"] == "labels left as they were given"
    assert data["undo"] == ""
    assert data["after"] == "clean"
    assert {case["source"] for case in data["cases"]} == {"given"}
    text = page.read_text(encoding="utf-8")
    Elements(text)
    assert "corrected label</label>" not in text
    assert " % differs" in text


@pytest.mark.parametrize("store", ["2d"], indirect=True)
def test_nothing_changed_where_no_correction_was_kept(store, history, tmp_path):
    store.restore(0)
    for case in store.cases[1:]:
        case["reference_label"] = None
    write_page(source_of(store, history), tmp_path / "out", progress=False)
    data = json.loads((tmp_path / "out" / "report_data.json").read_text(encoding="utf-8"))
    assert {(case["changed"], case["source"]) for case in data["cases"]} == {(0, "given")}
    assert store.read_clean("case 1") is None


@pytest.mark.parametrize("store", ["2d"], indirect=True)
def test_a_round_that_was_put_in_force_later_is_named(store, history):
    source = source_of(store, history)
    assert "--round 0" in source.contents().undo
    store.restore(0)
    contents = source.contents()
    assert contents.headline.endswith(" Since then round 0 was restored; this page is of round 1.")
    assert contents.undo == ""


@pytest.mark.parametrize("store", ["2d"], indirect=True)
def test_a_class_whose_bias_is_not_known_is_not_called_sound(store, history):
    source = source_of(store, history)
    store.record = lambda number: {"classes": store.class_names, "kept": [False, True], "shift": [-3.0, 0.0]}
    done = [finding.done for finding in source.contents().findings]
    assert done[0] == "the network's boundaries moved inwards by 1.5 mm in round 1"
    assert done[1] == "labels kept as given: their bias could not be measured"


@pytest.mark.parametrize("store", ["2d"], indirect=True)
def test_an_image_that_cannot_be_read_is_named_in_one_sentence(store, history):
    file = Path(store.cases[0]["image"])
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"^Image of case 'case 0' cannot be read: [^\n]*\.$"):
        source_of(store, history)[0]


@pytest.mark.parametrize("store", ["2d"], indirect=True)
def test_a_run_behind_a_link_finds_its_store(store, history, tmp_path):
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "deep" / "er")
    write_report(store, history, tmp_path / "link", progress=False)
    assert open_source(tmp_path / "link").store.root.resolve() == store.root.resolve()


@pytest.mark.parametrize(
    ("name", "expected"),
    [("lung", "lung"), ("$x^$", r"\$x^\$"), ("_x", " _x"), ("x" * 200, "x" * 39 + "…")],
    ids=["plain", "formula", "underscore", "long"],
)
def test_a_chart_shows_any_name(history, name, expected):
    assert shown_name(name) == expected
    plot_rounds(history, [name, "other"]).draw_without_rendering()


def test_number_of_classes_is_told():
    biased = Finding("lung", "biased", -1.0, None, 3, "")
    fine = Finding("heart", "unbiased", 0.0, None, 3, "")
    assert bias_found([biased]) == "The labels of 1 of 1 class are biased (lung too large)."
    assert bias_found([biased, fine]) == "The labels of 1 of 2 classes are biased (lung too large)."


def test_report_of_a_run_is_written_at_its_end_and_again(store, history, capsys):
    run = store.root.parent
    page = write_report(store, history, run, settings={"seed": 5}, progress=False)
    before = {f.name: f.read_bytes() for f in run.iterdir() if f.is_file()}
    assert page == run / "report.html"
    assert "Report: " in capsys.readouterr().out
    assert b"<dt>seed</dt><dd>5</dd>" in before["report.html"]
    write_page(open_source(run), run, progress=False)
    assert {f.name: f.read_bytes() for f in run.iterdir() if f.is_file()} == before


def write(folder, name, values, spacing=(1, 1, 2)):
    folder.mkdir(exist_ok=True)
    nib.save(nib.Nifti1Image(np.asarray(values), np.diag([*spacing, 1.0])), folder / name)


@pytest.fixture
def folders(tmp_path):
    """Label maps that are two voxels too wide, clean ones, images, and predictions that repeat the error."""
    shape = (24, 26, 12)
    distance = np.sqrt(((np.indices(shape) - np.reshape([12, 13, 6], (3, 1, 1, 1))) ** 2).sum(axis=0))
    for k in range(4):
        radius = 4 + 0.5 * k
        write(tmp_path / "labels", f"{k}.nii.gz", (distance <= radius + 2).astype(np.uint8))
        write(tmp_path / "clean", f"{k}.nii.gz", (distance <= radius).astype(np.uint8))
        write(tmp_path / "images", f"{k}_0000.nii.gz", (distance <= radius).astype(np.float32))
        write(tmp_path / "predictions", f"{k}.nii.gz", (radius + 2 - distance).astype(np.float32))
    (tmp_path / "clean" / "3.nii.gz").unlink()
    return tmp_path


def test_report_of_a_corrected_folder(folders):
    out = folders / "corrected"
    correct_folder(
        folders / "labels", folders / "clean", out, predictions=folders / "predictions", kind="logits", progress=False
    )
    page = write_page(open_source(out, images=folders / "images"), out, progress=False)
    data = json.loads((out / "report_data.json").read_text(encoding="utf-8"))
    assert data["classes"]["1"]["direction"] == "too large"
    assert {case["id"]: case["source"] for case in data["cases"]}["3.nii.gz"] == "corrected"
    assert "replaced by its clean label" in page.read_text(encoding="utf-8")
    Elements(page.read_text(encoding="utf-8"))


def test_report_of_an_audit(folders):
    out = folders / "audit"
    result = audit_folder(folders / "labels", folders / "clean", progress=False)
    write_audit(result, folders / "labels", folders / "clean", out)
    page = write_page(open_source(out), out, progress=False)
    data = json.loads((out / "report_data.json").read_text(encoding="utf-8"))
    assert data["headline"] == "The labels of 1 of 1 class are biased (class 1 too large). Nothing was corrected."
    assert data["cases"][0]["classes"]["1"]["displacement"] < -1
    text = page.read_text(encoding="utf-8")
    Elements(text)
    assert "3 cases without an image of the same name and size: outlines only." in text
    (out / ".report.html.partial").touch()  # of a call that was killed
    check_audit_folder(out, [folders / "labels", folders / "clean"])
    write_audit(result, folders / "labels", folders / "clean", out)  # the folder is still that of an audit
    assert not (out / ".report.html.partial").exists()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("manifest.jsonl", ""),
        ("manifest.jsonl", '{"case": "0.nii.gz"}\n'),
        ("report.json", "[]"),
        ("report.json", '{"classes": {"1": {}}, "values": [1]}'),
    ],
    ids=["no case", "a case without its label", "a list", "a class without its numbers"],
)
def test_damaged_correction_is_refused(folders, name, text):
    out = folders / "corrected"
    correct_folder(
        folders / "labels", folders / "clean", out, predictions=folders / "predictions", kind="logits", progress=False
    )
    (out / name).write_text(text)
    with pytest.raises(ValueError, match=r"corrected.* (as they were written|is damaged)"):
        open_source(out)


def test_image_of_a_label_may_be_a_photograph(tmp_path):
    Image.new("RGB", (9, 7)).save(tmp_path / "a.jpg")
    assert find_image("a.png", (9, 7), tmp_path).shape == (9, 7)
    (tmp_path / "a.jpg").write_bytes(b"no image")
    with pytest.raises(ValueError, match=r"^Image file .*a\.jpg cannot be read: [^\n]*\.$"):
        find_image("a.png", (9, 7), tmp_path)


def damaged(name, text):
    def change(folder):
        (folder / name).write_text(text, encoding="utf-8")

    return change


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        pytest.param(shutil.rmtree, FileNotFoundError, "is not a folder", id="no folder"),
        pytest.param(
            lambda f: (f / "results.json").unlink(), ValueError, "must be the folder of a run", id="other folder"
        ),
        pytest.param(damaged("results.json", "{"), ValueError, "results.json is damaged", id="damaged"),
        pytest.param(damaged("results.json", "[]"), ValueError, "results.json is damaged", id="a list"),
        pytest.param(
            damaged("audit.json", "{}"), ValueError, "must be a folder that `python -m monai_sc audit`", id="audit"
        ),
    ],
)
@pytest.mark.parametrize("store", ["2d"], indirect=True)
def test_folders_that_are_refused(store, history, change, error, words):
    run = Path(write_report(store, history, store.root.parent, progress=False)).parent
    if words.startswith("must be a folder that"):
        (run / "results.json").unlink()
    change(run)
    with pytest.raises(error, match=re.escape(words)):
        open_source(run)


def test_images_must_be_a_folder(folders):
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        open_source(folders, images=folders / "nowhere")


def test_charts_are_without_the_labels_of_an_expert_unless_there_are_no_others():
    def sources(*names):
        return [case["source"] for case in _charted({"cases": [{"source": name} for name in names]})]

    assert sources("clean", "corrected", "clean") == ["corrected"]
    assert sources("clean", "clean") == ["clean", "clean"]


@pytest.mark.parametrize(
    ("value", "expected"), [(-0.0098, "-0.0098"), (0.0, "+0.0"), (-2.94, "-2.9"), (1e-17, "+0.0"), (None, NOTHING)]
)
def test_length_in_microscopy_is_no_0(value, expected):
    assert _signed(value) == expected.replace("-", MINUS)
