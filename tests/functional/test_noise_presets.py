from __future__ import annotations

import pytest

from monai_sc.functional import NOISE_PRESETS

# Of each structure: num_steps, expansion_prob and march_prob. The names with "-paper" are rows of the paper's table.
MARKOV = {
    "jsrt-expand": {"lung": (180, 0.8, 0.05), "heart": (180, 0.8, 0.05), "clavicle": (100, 0.8, 0.02)},
    "jsrt-expand-paper": {"lung": (180, 0.7, 0.03), "heart": (180, 0.7, 0.03), "clavicle": (100, 0.7, 0.03)},
    "jsrt-shrink": {"lung": (180, 0.2, 0.05), "heart": (180, 0.2, 0.05), "clavicle": (100, 0.2, 0.02)},
    "jsrt-shrink-paper": {"lung": (200, 0.3, 0.05), "heart": (200, 0.3, 0.05), "clavicle": (120, 0.3, 0.05)},
    "isic-expand": {"lesion": (200, 0.8, 0.05)},
    "isic-expand-paper": {"lesion": (200, 0.8, 0.05)},
    "isic-shrink": {"lesion": (200, 0.2, 0.05)},
    "isic-shrink-paper": {"lesion": (200, 0.2, 0.05)},
    "brats-expand": {"tumour": (80, 0.7, 0.05)},
    "brats-expand-paper": {"tumour": (80, 0.7, 0.05)},
    "brats-shrink": {"tumour": (80, 0.3, 0.05)},
    "brats-shrink-paper": {"tumour": (80, 0.3, 0.05)},
}
MIXED = {
    "jsrt-mixed": {"lung": (7, 9), "heart": (7, 9), "clavicle": (3, 5)},
    "isic-mixed": {"lesion": (7, 9)},
    "brats-mixed": {"tumour": (3, 5)},
}
FILTER = {"2d": {"smooth_sigma": 2, "smooth_radius": 2}, "3d": {"smooth_sigma": 1}}
RELEASED_FLIPS = {"2d": 0.2, "3d": 0}
PAPER = "table of Yao et al., ICLR 2023"


def test_there_are_no_others():
    assert {*NOISE_PRESETS} == {*MARKOV, *MIXED}


@pytest.mark.parametrize("name", MARKOV)
def test_noise_of_each_structure_is_that_of_the_table_or_of_the_released_masks(name):
    preset, dimensions = NOISE_PRESETS[name], "3d" if name.startswith("brats") else "2d"
    if name.endswith("-paper"):
        rest, source = {"flip_prob": 0.1, "smoothing": "before_flips"}, PAPER
    else:
        rest = {"flip_prob": RELEASED_FLIPS[dimensions], "smoothing": "after_flips"}
        source = "masks that were released with Yao et al., ICLR 2023"
    assert preset.structures == (*MARKOV[name],)
    for structure, (num_steps, expansion_prob, march_prob) in MARKOV[name].items():
        own = preset.of_structure(structure)
        steps = {"num_steps": num_steps, "expansion_prob": expansion_prob, "march_prob": march_prob}
        assert own.parameters == {**steps, **rest, **FILTER[dimensions]}
        assert (own.kind, own.structures, own.source) == ("markov", (structure,), source)


@pytest.mark.parametrize("name", MIXED)
def test_radii_of_each_structure_are_those_of_the_table(name):
    preset = NOISE_PRESETS[name]
    assert preset.structures == (*MIXED[name],)
    for structure, radius in MIXED[name].items():
        own = preset.of_structure(structure)
        assert own.parameters == {"radius": radius}
        assert (own.kind, own.structures, own.source) == ("dilate_erode", (structure,), PAPER)


def test_preset_of_several_structures_has_a_value_for_each_of_what_differs():
    parameters = NOISE_PRESETS["jsrt-expand"].parameters
    assert parameters["num_steps"] == (180, 180, 100)
    assert parameters["expansion_prob"] == 0.8


@pytest.mark.parametrize("name", ["jsrt-expand", "isic-mixed"])
def test_other_structure_is_refused(name):
    with pytest.raises(ValueError, match=r"^structure must be one of l.*, got 'liver'\.$"):
        NOISE_PRESETS[name].of_structure("liver")
