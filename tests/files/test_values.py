from __future__ import annotations

import io
import tracemalloc

import numpy as np
import pytest
from PIL import Image
from scipy import ndimage
from scipy.spatial import cKDTree

from monai_sc.files import values as label_values
from monai_sc.files.values import MAX_CLASSES, SAMPLE, ValueJudge, _surroundings, masks_apart, values_in, why_no_label


def disc(radius, ndim=2, size=64):
    return np.sqrt(((np.indices((size,) * ndim) - size / 2 + 0.3) ** 2).sum(axis=0)) <= radius


def jpeg(values, quality=80):
    file = io.BytesIO()
    Image.fromarray(values.astype(np.uint8)).save(file, "JPEG", quality=quality)
    return np.asarray(Image.open(file))


def smoothed(values, dtype=np.uint8):
    return np.rint(ndimage.zoom(values.astype(float), 0.7, order=1)).astype(dtype)


def image(shape):
    rng = np.random.default_rng(0)
    waves = np.cos(np.indices(shape).sum(axis=0) / 9)
    return (120 + 80 * waves + rng.normal(0, 8, shape)).clip(0, 255).astype(np.uint8)


def mosaic(shape, cell, radius=2.0, seed=0):
    """Return regions that touch, of which each is a class."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, 1, (min(int(np.prod(shape)) // cell ** len(shape), 250), len(shape))) * shape
    places = np.stack(np.indices(shape), axis=-1).reshape(-1, len(shape))
    values = 1 + cKDTree(points).query(places)[1]
    values[np.linalg.norm(places - np.array(shape) / 2, axis=1) > radius * min(shape) / 2] = 0
    return values.reshape(shape).astype(np.uint16)


def lesions(shape, seed=0):
    """Return small objects with a value each, as an instance map has them."""
    rng = np.random.default_rng(seed)
    values = np.zeros(shape, dtype=np.int16)
    for value in range(1, 25):
        place = [rng.integers(2, size - 4) for size in shape]
        values[tuple(slice(start, start + rng.integers(1, 4)) for start in place)] = value
    return values


def rings(thickness, ndim, outwards):
    depth = (30 - np.sqrt(((np.indices((64,) * ndim) - 31.7) ** 2).sum(axis=0))) // thickness + 1
    values = depth.clip(0).astype(np.uint8)
    return np.where(values > 0, values.max() + 1 - values, 0) if outwards else values


MASK_AS = "near 0 and .* or between them, as a mask that was saved as JPEG or smoothed; set values over"
IMAGE_AS = "only between others"
NO_LABELS = {
    **{f"jpeg-{quality}": (jpeg(disc(17) * 255, quality), MASK_AS) for quality in (30, 50, 80, 95, 100)},
    "jpeg-of-128": (jpeg(disc(17) * 128), "near 0 and 128 .* set values over 64 to 128"),
    "jpeg-of-blank-and-small": (jpeg(disc(3) * 255), MASK_AS),
    "smoothed": (smoothed(disc(17) * 255), MASK_AS),
    "smoothed-16-bit": (smoothed(disc(17) * 65535, np.uint16), MASK_AS),
    "smoothed-volume": (smoothed(disc(9, 3, 32) * 255), MASK_AS),
    "resampled-map": (smoothed(disc(20) * 2 + disc(9) * 2), "value 1 occurs only at edges"),
    "resampled-map-volume": (smoothed(disc(12, 3, 32) * 2), "value 1 occurs only at edges"),
    "resampled-map-of-far-values": (smoothed(disc(20) * 17 + disc(9) * 36), IMAGE_AS),
    "image": (image((64, 64)), IMAGE_AS),
    "image-volume": (image((40, 40, 20)), IMAGE_AS),
    "ct": (np.random.default_rng(0).normal(0, 400, (40, 40, 20)).astype(np.int16), "more than 255 values, as an image"),
    "instances": (np.arange(1024).reshape(32, 32), "more than 255 values"),
}


@pytest.mark.parametrize(("values", "words"), NO_LABELS.values(), ids=NO_LABELS)
def test_values_of_no_label_are_told(values, words):
    told = why_no_label(values)
    assert words.split(" .* ")[0] in told
    assert words.split(" .* ")[-1] in told


LABELS = {
    "empty": np.zeros((9, 9), np.uint8),
    "full": np.full((9, 9), 255, np.uint8),
    "mask": disc(20) * 255,
    "scattered-mask": np.random.default_rng(0).random((32, 32)) < 0.5,
    **{f"mosaic-{cell}-{ndim}": mosaic((64,) * ndim, cell) for cell, ndim in ((20, 2), (8, 2), (12, 3))},
    "organs": mosaic((64, 64), 9, 0.8),
    "lesions": lesions((64, 64)),
    "lesions-volume": lesions((32, 32, 32)),
    **{f"rings-{t}-{n}-{o}": rings(t, n, o) for t in (2, 3) for n in (2, 3) for o in (True, False)},
    "ids-of-an-atlas": np.array([0, 2, 3, 10, 17, 41, 53, 250, 251, 254, 255])[mosaic((128, 128), 40, 0.8) % 11],
    "cityscapes": np.where(np.arange(128) < 6, 255, mosaic((128, 128), 12) % 19),
    "tiny-class-beside-255": np.where(disc(1), 1, disc(9) * 255),
}


@pytest.mark.parametrize("values", LABELS.values(), ids=LABELS)
def test_labels_are_labels(values):
    assert why_no_label(np.asarray(values)) == ""


def test_border_of_unknown_voxels_is_no_class():
    values = mosaic((64, 64), 20, 0.8) % 4
    values[ndimage.morphological_gradient(values, 3) > 0] = 255  # as in Pascal VOC
    assert why_no_label(values, ignore=255) == ""
    thin = np.where(disc(20), 255, 0)
    thin[disc(18)] = 1
    assert why_no_label(thin, ignore=255) == ""


@pytest.mark.parametrize("shape", [(30, 40), (12, 10, 14)])
@pytest.mark.parametrize("ignore", [None, 3])
def test_neighbours_are_those_of_filters(shape, ignore):
    values = np.random.default_rng(0).integers(0, 5, shape)
    values = ndimage.grey_closing(values, 2)
    counts, inside, between = _surroundings(values, values_in(values), ignore)
    low = ndimage.minimum_filter(np.where(values == ignore, 9, values), 3, mode="nearest")
    high = ndimage.maximum_filter(np.where(values == ignore, -9, values), 3, mode="nearest")
    for k, value in enumerate(np.unique(values)):
        own = values == value
        assert counts[k] == own.sum()
        if value != ignore:
            assert inside[k] == pytest.approx(((low == value) & (high == value))[own].mean())
            assert between[k] == pytest.approx(((low < value) & (high > value))[own].mean())


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", [bool, np.uint8, np.int16, np.int64, np.float32])
def test_values_are_those_of_unique(dtype, order):
    array = np.asarray(np.random.default_rng(0).integers(0, 9, (7, 8, 9)), dtype=dtype, order=order)
    assert np.array_equal(values_in(array), np.unique(array))
    assert len(values_in(array, limit=3)) > 3 or dtype is bool


def test_large_files_need_little_memory():
    """An image of 64 MB, and a label map of which only slices are looked at."""
    ct = np.random.default_rng(0).integers(-1000, 2000, (320, 320, 320), dtype=np.int16)
    labels = np.zeros(ct.shape, dtype=np.int16)
    labels[100:200, 100:200, 100:200] = 1
    labels[120:150, 120:150, 120:150] = 2
    for values, told in ((ct, True), (labels, False)):
        tracemalloc.start()
        assert bool(why_no_label(values)) == told
        assert tracemalloc.get_traced_memory()[1] < 0.3 * values.nbytes
        tracemalloc.stop()


def test_slices_of_a_large_map_show_its_edges():
    values = np.zeros((128, 128, 64), dtype=np.uint8)
    assert values.size > SAMPLE
    values[40:90, 40:90, 20:50] = 2
    assert why_no_label(values) == ""
    values[39:91, 39:91, 19:51] = np.maximum(values[39:91, 39:91, 19:51], 1)
    assert "value 1 occurs only at edges" in why_no_label(values)


def test_judge_looks_at_the_first_files_and_at_new_values(monkeypatch):
    looked = []
    true = label_values.why_no_label
    monkeypatch.setattr(label_values, "why_no_label", lambda *a, **o: looked.append(1) or true(*a, **o))
    judge = ValueJudge()
    good = disc(20).astype(np.uint8) + disc(9)
    for number in range(1, 12):
        assert judge.why_no_label(good, values_in(good)) == ""
        assert len(looked) == min(number, label_values.JUDGED)
    bad = jpeg(disc(17) * 255)
    assert "saved as JPEG" in judge.why_no_label(bad, values_in(bad))
    assert "saved as JPEG" in judge.why_no_label(bad, values_in(bad))


@pytest.mark.parametrize(
    ("found", "apart"),
    [
        ({"a": [1], "b": [255], "c": []}, ("a", "b")),
        ({"a": [255], "b": [254]}, ("b", "a")),
        ({"a": [1], "b": [255], "c": [1, 255]}, None),
        ({"a": [1], "b": [2]}, None),
        ({"a": [255], "b": [255]}, None),
        ({"a": []}, None),
        ({"a": list(range(1, MAX_CLASSES))}, None),
    ],
)
def test_masks_of_two_conventions_are_told_apart_from_classes(found, apart):
    assert masks_apart(found) == apart
