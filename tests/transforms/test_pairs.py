"""What holds for every transform and its dictionary version."""

import inspect

import pytest

from monai_sc import transforms

PAIRS = [name for name in transforms.__all__ if f"{name}d" in transforms.__all__ and name != "RandLabelNoise"]
OWN = {"keys", "allow_missing_keys", "noise", "id_key", "foreground_key", "foreground"}  # what only one of both has


def options_of(name):
    parameters = inspect.signature(getattr(transforms, name)).parameters.values()
    return {one.name: (one.kind, one.default) for one in parameters if one.name not in OWN}


@pytest.mark.parametrize("name", PAIRS)
def test_both_have_the_same_options_and_defaults(name):
    array, dictionary = options_of(name), options_of(f"{name}d")
    if dictionary.keys() - array.keys() == {"options"}:  # which are handed on, so that the defaults are the same
        del dictionary["options"]
        array = {option: array[option] for option in array.keys() - transforms.MarkovNoiseOptions.__annotations__}
        assert array.pop("parameters")
    dictionary.pop("group_key", None)  # an array has no other keys
    assert array == dictionary
    if name.startswith("Rand"):
        assert array["prob"][1] == 0.1


def test_missing_keys_are_refused_by_default():
    for name in PAIRS:
        assert inspect.signature(getattr(transforms, f"{name}d")).parameters["allow_missing_keys"].default is False
