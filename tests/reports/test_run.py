import json
import re

import nibabel as nib
import numpy as np
import pytest
from PIL import Image
from rich.console import Console

from monai_sc.functional import shift_boundary
from monai_sc.reports import plot_correction, print_results, summarise_run, write_reference, write_report
from monai_sc.store import LabelStore, UsableCases


def record(number, bias, dice, reason="", metrics=None):
    return {
        "round": number,
        "epoch": 10 * (number + 1),
        "bias": [bias, float("nan")],
        "bias_interval": [[bias - 0.5, bias + 0.5], [float("nan")] * 2],
        "bias_mm": [bias, float("nan")],
        "num_used": [4, 0],
        "num_skipped": [0, 4],
        "clean_dice": [dice, 0.0],
        "learnt": [True, False],
        "verdict": ["unbiased", "cannot tell"],
        "voxels_changed": [] if reason else [10, 0],
        "metrics": metrics or {},
        "stop_reason": reason,
    }


@pytest.fixture(params=[(40, 44), (24, 26, 20)], ids=["2d", "3d"])
def store(tmp_path, request):
    cases = []
    for k in range(5):
        grid = np.stack(np.meshgrid(*(np.arange(n) - n / 2 for n in request.param), indexing="ij"))
        clean = (np.sqrt((grid**2).sum(axis=0)) <= 6)[None]
        case = {"id": f"case{k}"}
        for name, mask in (("image", clean * 1.0), ("label", shift_boundary(clean, 3)), ("reference_label", clean)):
            files = [tmp_path / f"{k}_{name}_{c}.nii.gz" for c in range(2)]
            for file in files:
                nib.save(nib.Nifti1Image(mask[0].astype(np.float32), np.eye(4)), file)
            case[name] = str(files[0]) if name == "image" else [str(f) for f in files]
        cases.append(case)
    store = LabelStore(tmp_path / "labels", cases, class_names=["disc", "ghost"])
    with store.write_round(1, {}) as writer:
        for k, case in enumerate(cases):
            label = store.read(case["id"])
            label[0] = shift_boundary(store.read_clean(case["id"])[:1], 0.5 * k)[0]
            writer.write(case["id"], label)
    return store


def dice_of(disc, ghost):
    return {"disc_test_dice": disc, "ghost_test_dice": ghost}


HISTORY = [
    record(0, -3.0, 0.7, metrics=dice_of(0.6, 0.5)),
    record(1, -0.2, 0.9, "the bias of every class is under one voxel", metrics=dice_of(0.8, 0.6)),
]


def test_summary_compares_labels_and_networks(store):
    results = summarise_run(store, HISTORY, reference=dice_of(0.9, 0.7))
    given, corrected = results["label_dice"]["given"], results["label_dice"]["corrected"]
    assert corrected[0] > given[0] + 0.05
    assert corrected[1] == given[1]
    assert results["test_dice"]["trained on corrected labels"] == [0.8, 0.6]
    assert results["recovered"] == pytest.approx(0.15 / 0.25)
    assert results["kept_round"] == 1


def test_summary_follows_the_round_that_was_kept(store):
    store.restore(0)
    results = summarise_run(store, HISTORY)
    assert list(results["test_dice"]) == ["trained on given labels"]
    assert list(results["label_dice"]) == ["given"]
    assert results["recovered"] is None


def test_summary_needs_a_round(store):
    with pytest.raises(ValueError, match=r"history must hold at least one round, got none"):
        summarise_run(store, [])


def test_tables_show_the_numbers(store):
    console = Console(record=True, width=120)
    print_results(summarise_run(store, HISTORY, reference=dice_of(0.9, 0.7)), console=console)
    text = console.export_text()
    for part in ("disc", "ghost", "-3.00 [-3.50, -2.50]", "undefined", "0.450", "1 (kept)", "recovered 60 %"):
        assert part in text, part


def test_report_is_written_with_a_picture(store, tmp_path, capsys):
    write_reference({"loss": np.ones(2), **dice_of(0.9, 0.7)}, tmp_path / "out")
    page = write_report(store, HISTORY, tmp_path / "out")
    with Image.open(page.with_name("report.png")) as image:
        assert image.size[0] > 1000
        colours = np.asarray(image.convert("RGB")).reshape(-1, 3)
    for colour in ((0x56, 0xB4, 0xE9), (0xD5, 0x5E, 0x00), (0xF0, 0xE4, 0x42)):
        assert (np.abs(colours.astype(int) - colour).max(axis=1) < 30).any()
    results = json.loads((tmp_path / "out" / "results.json").read_text())
    assert results["recovered"] == pytest.approx(0.6)
    assert results["rounds"][0]["bias"] == [-3.0, None]
    assert results["skipped"] == {}
    assert str(page) in capsys.readouterr().out


def test_cases_that_were_left_out_are_listed(store, tmp_path):
    cases = UsableCases(store.cases, {"case9": "Label file a[b]/c.png is truncated or damaged"})
    results = summarise_run(LabelStore(store.root, cases, class_names=store.class_names), HISTORY)
    assert results["skipped"] == cases.skipped
    console = Console(record=True, width=120)
    print_results(results, console=console)
    assert re.search(r"case9 .* Label file a\[b\]/c\.png is truncated or damaged", console.export_text())


def test_report_without_a_correction_says_so(store, tmp_path, capsys):
    store.restore(0)
    write_report(store, HISTORY[:1], tmp_path / "out")
    output = capsys.readouterr().out
    assert "No correction was kept" in output
    assert "corrected" not in output.split("No correction")[0]


def test_reference_without_test_dice_is_refused(tmp_path):
    with pytest.raises(KeyError, match=r"metrics must hold NAME_test_dice of each class, got \['loss'\]"):
        write_reference({"loss": 1.0}, tmp_path)


def test_figure_copes_without_clean_labels_and_with_empty_masks():
    case = {
        "id": "a",
        "image": np.zeros((30, 30)),
        "given": np.zeros((2, 30, 30), bool),
        "corrected": np.zeros((2, 30, 30), bool),
    }
    figure = plot_correction([case], HISTORY, ["disc", "ghost"])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["label as given", "corrected label"]


def test_what_is_not_known_is_printed_as_such(capsys):
    unknown = {**record(0, -3.0, None), "bias": [None, None], "bias_interval": [[None, None]] * 2}
    results = {
        "classes": ["[/disc]", "ghost"],
        "rounds": [{**unknown, "stop_reason": "it is over"}],
        "kept_round": 0,
        "label_dice": {},
        "test_dice": {"trained on given labels": [0.5, None]},
        "recovered": None,
        "skipped": {},
    }
    print_results(results)
    told = capsys.readouterr().out
    assert "[/disc]" in told
    assert "nan" in told


@pytest.mark.parametrize("shape", [(1, 40), (40, 1), (5, 40)])
def test_picture_of_a_flat_image(shape):
    given = np.zeros((1, *shape), dtype=bool)
    given[0, : shape[0] // 2 + 1, : shape[1] // 2] = True
    case = {"id": "$a^$", "image": np.ones(shape), "given": given, "corrected": ~given, "clean": None}
    plot_correction([case], [record(0, -3.0, 0.7)], ["disc", "ghost"]).draw_without_rendering()
