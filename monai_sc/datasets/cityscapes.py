"""The official layout of Cityscapes: street scenes with fine and coarse labels."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw
from scipy import ndimage

from monai_sc.datasets.layout import (
    CLEAN,
    TEST,
    TRAIN,
    Content,
    Layout,
    SourceCase,
    check_new_folder,
    check_size,
    open_label,
    open_rgb,
    refuse_unpaired,
    visible_files,
)
from monai_sc.functional import case_seed

CAR = 26
LABEL_IDS = range(34)
IMAGE_SUFFIX = "_leftImg8bit.png"


class CityscapesLayout(Layout):
    """Cityscapes, as its packages leftImg8bit, gtFine and gtCoarse are unpacked into one folder.

    The label is where gtFine is a car, its noisy version where gtCoarse is. An image counts when cars are at least
    ``min_car_share`` of the pixels of gtFine. The paper keeps 2086 of the 2975 training images, of which 100 are clean,
    and 350 of the 500 validation images, by a rule that is not known here; so the number of cases depends on
    ``min_car_share`` and need not be that of the paper.

    The official validation part is the split ``"test"``. Of the training part, 100 cases are ``"clean"``: those whose
    id, with ``seed``, has the smallest hash. Where the training part lacks images, this number is in proportion, but
    at least 1. A part that is there alone is divided by the preparation instead. The official test part, whose labels
    are not public, and train_extra are not read. A frame is a group of its own: some cities are one long sequence.

    Raises:
        ValueError: when ``min_car_share`` is out of range.
    """

    name = "cityscapes"
    classes = ("car",)
    default_size = (512, 256)
    split_sizes = {TRAIN: 1986, CLEAN: 100, TEST: 350}
    parts = {"train": 2975, "val": 500}  # with the official number of images

    def __init__(self, source: Path, *, min_car_share: float = 0.01, seed: int = 0) -> None:
        super().__init__(source)
        if not 0 <= min_car_share <= 1:
            raise ValueError(f"min_car_share must be a share of the pixels, in [0, 1], got {min_car_share}.")
        self.min_car_share = float(min_car_share)
        self.seed = seed

    def cases(self) -> list[SourceCase]:
        """Return the cases with enough cars, ordered by their id; this reads gtFine of every image.

        Raises:
            ValueError: in one sentence with the file or folder, when the folder does not have this layout, a case
                lacks a file, gtFine of an image cannot be used, or no image of a part has enough cars.
        """
        here = [part for part in self.parts if (self.source / "leftImg8bit" / part).is_dir()]
        if not here:
            raise ValueError(
                f"Folder {self.source} must hold leftImg8bit/train, got neither that nor leftImg8bit/val; give the "
                "folder that leftImg8bit, gtFine and gtCoarse were unpacked in."
            )
        found = []
        for part in here:
            kept = [case for case in self._paired(part) if self._car_share(case) >= self.min_car_share]
            if not kept:
                raise ValueError(
                    f"Folder {self.source / 'gtFine' / part} must hold an image with a share of car pixels of at least "
                    f"{self.min_car_share:g}, got none; lower min_car_share."
                )
            clean = self._clean_ids(kept) if part == "train" else set()
            for case in kept:
                split = TEST if part == "val" else CLEAN if case.id in clean else TRAIN
                found.append(SourceCase(case.id, case.files, case.group, split if len(here) > 1 else None))
        return sorted(found, key=lambda case: case.id)

    def _paired(self, part: str) -> list[SourceCase]:
        """Return the cases of a part, with and without cars."""
        images = self._files("leftImg8bit", part, IMAGE_SUFFIX)
        labels = {kind: self._files(kind, part, f"_{kind}_labelIds.png") for kind in ("gtFine", "gtCoarse")}
        for kind, files in labels.items():
            refuse_unpaired(images, files, (self.source / "leftImg8bit" / part, self.source / kind / part))
        return [
            SourceCase(name, {"image": image, **{kind: files[name] for kind, files in labels.items()}}, group=name)
            for name, image in images.items()
        ]

    def _files(self, kind: str, part: str, suffix: str) -> dict[str, Path]:
        """Return the files of all cities by the name of their frame."""
        folder = self.source / kind / part
        if not folder.is_dir():
            raise ValueError(f"Folder {folder} does not exist; unpack {kind} of Cityscapes beside the other packages.")
        cities = [city for city in sorted(folder.iterdir()) if city.is_dir() and not city.name.startswith(".")]
        return visible_files(cities, [suffix])

    def _car_share(self, case: SourceCase) -> float:
        return float(np.mean(_open_ids(case.files["gtFine"]) == CAR))

    def _clean_ids(self, kept: Sequence[SourceCase]) -> set[str]:
        images = len(self._files("leftImg8bit", "train", IMAGE_SUFFIX))
        count = max(1, round(self.split_sizes[CLEAN] * images / self.parts["train"]))
        return set(sorted((case.id for case in kept), key=lambda name: case_seed(self.seed, name))[:count])

    def missing(self, cases: Sequence[SourceCase]) -> list[str]:
        """Return which images the folder lacks; images with too few cars do not count as missing."""
        phrases = []
        for part, count in self.parts.items():
            is_here = (self.source / "leftImg8bit" / part).is_dir()
            lacking = count - (len(self._files("leftImg8bit", part, IMAGE_SUFFIX)) if is_here else 0)
            if lacking > 0:
                phrases.append(f"{lacking} of the {count} images of leftImg8bit/{part}, with their gtFine and gtCoarse")
        return phrases

    def read(self, case: SourceCase) -> Content:
        image = open_rgb(case.files["image"])
        labels = {kind: _open_ids(case.files[kind]) for kind in ("gtFine", "gtCoarse")}
        for kind, label in labels.items():
            check_size(label, image, case.files[kind])
        return Content(image, labels["gtFine"][None] == CAR, noisy=labels["gtCoarse"][None] == CAR)

    def options(self) -> dict[str, float]:
        return {"min_car_share": self.min_car_share}


LAYOUT = CityscapesLayout


def _open_ids(file: Path) -> np.ndarray:
    return open_label(file, LABEL_IDS, ["L"])


Polygon = list[tuple[float, float]]
Scene = list[tuple[str, Polygon]]
"""Objects from the back to the front: the name of the class, and the corners ``(x, y)`` in pixels."""

WIDTH, HEIGHT = 256, 128
# official label id, and a colour
CLASSES = {
    "ego vehicle": (1, (30, 30, 35)),
    "road": (7, (110, 105, 110)),
    "building": (11, (130, 115, 100)),
    "sky": (23, (190, 205, 215)),
    "person": (24, (170, 70, 60)),
    "car": (26, (55, 75, 140)),
}
CAR_OUTLINE = [
    (0, 1),
    (0, 0.5),
    (0.15, 0.4),
    (0.3, 0),
    (0.7, 0),
    (0.85, 0.4),
    (1, 0.5),
    (1, 1),
]  # of its width and height


def write_cityscapes(out: Path, *, num_cases: Mapping[str, int], seed: int = 0) -> None:
    """Write small generated scenes as leftImg8bit, gtFine and gtCoarse of Cityscapes lie after unpacking.

    Each part has one image more than asked for, without a car. As in the official data, the test part has no label but
    0, and train_extra coarse labels only.

    ``num_cases`` are those with cars; ``"train"`` and ``"clean"`` are both in the official training part.
    """
    check_new_folder(out)
    train = num_cases.get("train", 0) + num_cases.get("clean", 0)
    for part, count, cities in (
        ("train", train, ("aachen", "bochum")),
        ("val", num_cases.get("test", 0), ("frankfurt",)),
    ):
        for k in range(count + 1 if count else 0):
            name = f"{cities[k % len(cities)]}_{k:06d}_000019"
            scene, coarse = _scene(name, seed, with_cars=k > 0)
            _write_image(out, part, name, scene, seed)
            _write_label(out, "gtFine", part, name, scene)
            _write_label(out, "gtCoarse", part, name, coarse)
    scene, coarse = _scene("berlin_000000_000019", seed, with_cars=True)
    _write_image(out, "test", "berlin_000000_000019", scene, seed)
    _write_label(out, "gtFine", "test", "berlin_000000_000019", [])
    _write_label(out, "gtCoarse", "train_extra", "augsburg_000000_000000", coarse)


def _scene(name: str, seed: int, *, with_cars: bool) -> tuple[Scene, Scene]:
    """Return what is in an image, and how an annotator in a hurry draws it."""
    state = np.random.RandomState(case_seed(seed, name) % 2**32)
    horizon = state.uniform(0.4, 0.5) * HEIGHT
    roofs = [(x, state.uniform(0.2, 0.8) * horizon) for x in np.linspace(0, WIDTH, 7)]
    scene: Scene = [
        ("sky", [(0, 0), (WIDTH, 0), (WIDTH, horizon), (0, horizon)]),
        ("building", [(0, horizon), *roofs, (WIDTH, horizon)]),
        ("road", [(0, horizon), (WIDTH, horizon), (WIDTH, HEIGHT), (0, HEIGHT)]),
    ]
    x, foot = state.uniform(0, WIDTH - 8), horizon + 20
    scene.append(("person", [(x, foot), (x + 2, foot - 24), (x + 6, foot - 24), (x + 8, foot)]))
    for place in range(state.randint(1, 4) if with_cars else 0):
        width = state.uniform(40, 60)
        height, left = state.uniform(0.45, 0.6) * width, place * 80 + state.uniform(0, 20)
        top = horizon + state.uniform(0, 20) - 0.3 * height
        scene.append(("car", [(left + x * width, top + y * height) for x, y in CAR_OUTLINE]))
    scene.append(("ego vehicle", [(0, HEIGHT - 6), (WIDTH, HEIGHT - 6), (WIDTH, HEIGHT), (0, HEIGHT)]))
    return scene, [(label, _coarse(polygon, state)) for label, polygon in scene]


def _coarse(polygon: Polygon, state: np.random.RandomState) -> Polygon:
    """Return every second corner, moved inwards and by some error."""
    corners = np.array(polygon if len(polygon) < 6 else polygon[::2] + polygon[-1:])
    middle = corners.mean(0)
    moved = middle + 0.93 * (corners - middle) + state.normal(scale=0.5, size=corners.shape)
    return [(float(x), float(y)) for x, y in np.clip(moved, 0, (WIDTH, HEIGHT))]


def _write_image(out: Path, part: str, name: str, scene: Scene, seed: int) -> None:
    state = np.random.RandomState(case_seed(seed, f"{name} image") % 2**32)
    picture = np.asarray(_drawn(scene, "RGB", [CLASSES[label][1] for label, _ in scene]), dtype=float)
    picture = ndimage.gaussian_filter(picture, (0.8, 0.8, 0))
    texture = ndimage.gaussian_filter(state.normal(size=picture.shape[:2]), 2)
    picture += (8 * texture / texture.std())[..., None] + state.normal(scale=5, size=picture.shape)
    file = _file(out, "leftImg8bit", part, name, "leftImg8bit.png")
    Image.fromarray(np.clip(picture, 0, 255).astype(np.uint8)).save(file)


def _write_label(out: Path, kind: str, part: str, name: str, scene: Scene) -> None:
    """Write the ids of the classes, those of the objects (16 bits), the colours and the corners."""
    ids = [CLASSES[label][0] for label, _ in scene]
    objects = [i * 1000 + k if scene[k][0] in ("person", "car") else i for k, i in enumerate(ids)]
    colours = [(*CLASSES[label][1], 255) for label, _ in scene]
    _drawn(scene, "L", ids).save(_file(out, kind, part, name, f"{kind}_labelIds.png"))
    instances = np.asarray(_drawn(scene, "I", objects)).astype(np.uint16)
    Image.fromarray(instances).save(_file(out, kind, part, name, f"{kind}_instanceIds.png"))
    _drawn(scene, "RGBA", colours).save(_file(out, kind, part, name, f"{kind}_color.png"))
    corners = {
        "imgHeight": HEIGHT,
        "imgWidth": WIDTH,
        "objects": [{"label": label, "polygon": np.rint(polygon).astype(int).tolist()} for label, polygon in scene],
    }
    _file(out, kind, part, name, f"{kind}_polygons.json").write_text(json.dumps(corners), encoding="utf-8")


def _drawn(scene: Scene, mode: str, fills: Sequence[Any]) -> Image.Image:
    picture = Image.new(mode, (WIDTH, HEIGHT))
    draw = ImageDraw.Draw(picture)
    for (_, polygon), fill in zip(scene, fills, strict=True):
        draw.polygon(polygon, fill=fill)
    return picture


def _file(out: Path, kind: str, part: str, name: str, suffix: str) -> Path:
    folder = out / kind / part / name.split("_")[0]
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}_{suffix}"
