import gzip
from types import SimpleNamespace

import nibabel as nib
import numpy as np
import pytest
import torch
from monai.data import CacheDataset, DataLoader, Dataset, PersistentDataset
from monai.transforms import (
    Compose,
    EnsureTyped,
    LoadImaged,
    RandCropByPosNegLabeld,
    RandRotated,
    Spacingd,
)

from monai_sc.handlers.loaders import check_loaders, damaged_file
from monai_sc.transforms import LoadLabeld

NOTHING = Compose([])


def case_of(name, **more):
    return {"id": name, "image": torch.zeros(1, 2), "label": torch.ones(1, 2), **more}


def loader_of(*cases):
    return DataLoader(Dataset(list(cases), NOTHING), batch_size=2)


def check(training=None, clean=None, relabel=None):
    training = loader_of(case_of("a"), case_of("b")) if training is None else training
    return check_loaders(training, clean, loader_of(case_of("a"), case_of("b")) if relabel is None else relabel)


def test_first_case_of_the_relabel_loader_is_returned():
    first = check(clean=loader_of(case_of("c")))
    assert first["id"] == "a"
    assert first["image"].shape == (1, 2)


def test_clean_cases_are_not_always_needed():
    assert check()["id"] == "a"


@pytest.mark.parametrize(
    "training",
    [
        None,
        [1, 2],
        DataLoader([case_of("a")]),
        DataLoader(SimpleNamespace(data={"a": 1}, __len__=lambda: 1), sampler=[0]),
        loader_of({"id": "a"}),
        loader_of({"label": "a"}),
        loader_of(case_of("a"), "b"),
    ],
    ids=["none", "list", "plain-list", "no-list", "no-label", "no-id", "text"],
)
def test_training_data_must_be_a_list_of_cases(training):
    with pytest.raises(TypeError, match=r"a list of dictionaries with 'id' and 'label', got [A-Za-z]+\.$"):
        check_loaders(training, None, loader_of(case_of("a")))


@pytest.mark.parametrize("relabel", [None, DataLoader([case_of("a")])])
def test_relabel_loader_must_have_a_transform(relabel):
    with pytest.raises(TypeError, match=r"^relabel_loader must be a DataLoader over a MONAI data set with a transform"):
        check_loaders(loader_of(case_of("a")), None, relabel)


@pytest.mark.parametrize("name", ["clean_loader", "relabel_loader"])
def test_persistent_data_set_must_keep_metadata(tmp_path, name):
    for track_meta in (False, True):
        options = {"cache_dir": tmp_path / str(track_meta), "track_meta": track_meta, "weights_only": not track_meta}
        loader = DataLoader(PersistentDataset([case_of("c")], NOTHING, **options))
        loaders = {"clean": loader} if name == "clean_loader" else {"relabel": loader}
        if track_meta:
            assert check(**loaders)["id"] == ("a" if name == "clean_loader" else "c")
            continue
        with pytest.raises(ValueError, match=rf"^The PersistentDataset of {name} must have track_meta=True .*, got F"):
            check(**loaders)


@pytest.mark.parametrize(
    ("loaders", "error", "message"),
    [
        ({"clean": loader_of()}, ValueError, r"^clean_loader must hold at least one case, got none\.$"),
        ({"relabel": loader_of()}, ValueError, r"^relabel_loader must hold at least one case, got none\.$"),
        (
            {"clean": loader_of({"label": 1})},
            KeyError,
            r"clean_loader must hold \('image', 'label'\), but 'image' is",
        ),
        ({"clean": loader_of({"image": 1})}, KeyError, r"of clean_loader must hold .* but 'label' is missing"),
        (
            {"relabel": loader_of({"id": "a"})},
            KeyError,
            r"relabel_loader must hold \('id', 'image'\), but 'image' is",
        ),
        ({"relabel": loader_of({"image": 1})}, KeyError, r"of relabel_loader must hold .* but 'id' is missing"),
    ],
)
def test_batches_must_hold_what_is_needed(loaders, error, message):
    with pytest.raises(error, match=message):
        check(**loaders)


@pytest.mark.parametrize("several", [False, True], ids=["one-file", "one-per-channel"])
def test_clean_case_with_an_image_of_a_training_case_is_refused(tmp_path, several):
    (tmp_path / "a.png").touch()
    (tmp_path / "link.png").symlink_to(tmp_path / "a.png")
    names = ("a.png", "b.png") if several else ("a.png",)
    own, linked = ([str(tmp_path / name) for name in (first, *names[1:])] for first in ("a.png", "link.png"))
    own, linked = (files if several else files[0] for files in (own, linked))
    training = loader_of(case_of("0", image=str(tmp_path / "c.png")), case_of("a", image=own))
    message = rf"^Clean cases must not be training cases, but {{}} has the image of 'a', {tmp_path}/a\.png: remove it"
    with pytest.raises(ValueError, match=message.format("'x'")):
        check(training, loader_of(case_of("y"), case_of("x", image=linked)))
    with pytest.raises(ValueError, match=message.format(f"'{tmp_path}/a\\.png'")):
        check(training, loader_of({"image": linked, "label": torch.ones(1)}))
    assert check(training, loader_of(case_of("x", image=str(tmp_path / "d.png"))))["id"] == "a"


def test_clean_cases_without_files_are_not_compared():
    check(clean=DataLoader(CacheDataset([case_of("a")], NOTHING, progress=False)))
    check(clean=DataLoader([case_of("a")]))
    check(loader_of({"id": "a", "label": 1}), loader_of({"id": "a", "image": 1, "label": 1}))


def write_image(file):
    nib.save(nib.Nifti1Image(np.zeros((4, 5), np.uint8), np.eye(4)), file)
    return str(file)


def test_first_damaged_file_is_named(tmp_path):
    files = [write_image(tmp_path / f"{k}.nii.gz") for k in range(4)]
    loaders = [
        None,
        SimpleNamespace(),
        loader_of({"id": "a", "image": files[0], "label": [files[1], files[2]]}),
        loader_of({"id": "b", "image": files[3], "label": files[0]}),
    ]
    assert damaged_file(loaders) == ""
    content = (tmp_path / "2.nii.gz").read_bytes()
    (tmp_path / "3.nii.gz").write_bytes(b"")
    assert damaged_file(loaders) == f"Image file {files[3]} is empty, of 0 bytes; copy it again from its source."
    (tmp_path / "2.nii.gz").write_bytes(content[:-1])
    assert damaged_file(loaders).startswith(f"Label file {files[2]} is truncated or damaged: ")


def test_image_is_read_to_its_end_to_find_damage(tmp_path):
    file = write_image(tmp_path / "a.nii.gz")
    content = bytearray(gzip.compress(gzip.decompress((tmp_path / "a.nii.gz").read_bytes())))
    content[-6] ^= 1  # of the checksum
    (tmp_path / "a.nii.gz").write_bytes(content)
    assert "CRC check failed" in damaged_file([loader_of({"id": "a", "image": file, "label": file})])


@pytest.mark.parametrize("case", [{"id": "a", "image": torch.zeros(1), "label": 3}, "a"], ids=["arrays", "text"])
def test_cases_that_were_loaded_before_are_not_looked_at(case):
    assert damaged_file([DataLoader(Dataset([case]))]) == ""


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork", None])
def test_workers_of_the_relabel_loader_must_be_forked(method, monkeypatch):
    """Another start method is refused before the training: the work of its transforms could not be inverted."""
    data = Dataset([case_of("a")], NOTHING)
    loader = DataLoader(data, num_workers=1, multiprocessing_context=method)
    default = "forkserver" if method is None else "fork"
    monkeypatch.setattr("multiprocessing.get_start_method", lambda *_: default)
    if method == "fork":
        assert check(relabel=loader)["id"] == "a"
        return
    with pytest.raises(
        ValueError, match=rf"^relabel_loader must have num_workers=0, .*got the start method '{method or default}'"
    ):
        check(relabel=loader)
    assert check(relabel=DataLoader(data, multiprocessing_context=None))["id"] == "a"


def volumes(tmp_path, number=3):
    cases = []
    for k in range(number):
        mask = np.zeros((12, 12, 6), np.uint8)
        mask[3:8, 4:9, 2:5] = 1
        for name in ("image", "label"):
            nib.save(nib.Nifti1Image(mask, np.diag([1.0, 1.0, 2.0, 1.0])), tmp_path / f"{name}{k}.nii.gz")
        files = {name: str(tmp_path / f"{name}{k}.nii.gz") for name in ("image", "label")}
        cases.append({"id": str(k), **files})
    return cases


def resampling(modes, *, lazy=False):
    keys = ["image", "label"]
    # what crops lazily has no mode, and is linear
    overrides = {"label": {"mode": "nearest"}} if lazy and modes != "bilinear" else None
    return Compose(
        [
            LoadImaged("image", ensure_channel_first=True),
            LoadLabeld("label"),
            Spacingd(keys, pixdim=(0.7, 0.7, 1.3), mode=modes),
            RandRotated(keys, prob=1.0, range_x=0.4, mode=modes),
            RandCropByPosNegLabeld(keys, "label", (8, 8, 4), num_samples=2),
            EnsureTyped(keys, dtype=torch.float32),
        ],
        lazy=lazy,
        overrides=overrides,
    )


LINEAR = r"must hold whole numbers, got 0\.\d+, as after linear resampling; .* mode='nearest' for labels, and with lazy"


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("which", ["training", "clean"])
def test_labels_that_are_resampled_linearly_are_refused(tmp_path, which, lazy):
    cases = volumes(tmp_path)
    good, bad = (
        DataLoader(Dataset(part, resampling(modes, lazy=lazy)), batch_size=1)
        for part, modes in ((cases[:2], ("bilinear", "nearest")), (cases[:2], "bilinear"))
    )
    assert check_loaders(good, None, loader_of(case_of("a")))["id"] == "a"
    loaders = (bad, None) if which == "training" else (loader_of(case_of("a")), bad)
    with pytest.raises(ValueError, match=LINEAR):
        check_loaders(*loaders, loader_of(case_of("a")))


@pytest.mark.parametrize("kind", [Dataset, CacheDataset])
def test_look_at_a_label_changes_no_training(tmp_path, kind):
    def batches(look):
        transform = resampling(("bilinear", "nearest")).set_random_state(seed=3)
        torch.manual_seed(5)
        np.random.seed(5)
        options = {"progress": False} if kind is CacheDataset else {}
        loader = DataLoader(kind(volumes(tmp_path), transform, **options), batch_size=1, shuffle=True)
        if look:
            check_loaders(loader, None, loader_of(case_of("a")))
        return [batch["label"].as_tensor() for batch in loader]

    for first, second in zip(batches(look=True), batches(look=False), strict=True):
        assert torch.equal(first, second)


@pytest.mark.parametrize("label", [[0.0, 1.0], [0.05, 0.95], [0.9999998, 0.0], [3.0, 255.0]])
def test_labels_of_other_kinds_are_taken(label):
    case = case_of("a", label=torch.tensor([label]))
    assert check(training=loader_of(case), clean=loader_of(case | {"id": "c"}))["id"] == "a"
