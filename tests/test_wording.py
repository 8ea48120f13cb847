import pytest

from monai_sc.wording import class_called, counted, signed


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [(0, "case", "0 cases"), (1, "clean case", "1 clean case"), (2, "case", "2 cases"), (2, "class", "2 classes")],
)
def test_noun_follows_its_number(number, noun, expected):
    assert counted(number, noun) == expected


@pytest.mark.parametrize(("name", "expected"), [("1", "class 1"), ("lung", "lung"), ("t1", "t1")])
def test_a_class_without_a_name_is_called_by_its_value(name, expected):
    assert class_called(name) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [(-2.936, "-2.94"), (0.0, "+0.00"), (0.1, "+0.10"), (-0.00981, "-0.0098"), (0.05, "+0.05"), (float("nan"), "+nan")],
)
def test_lengths_in_microscopy_have_two_digits(value, expected):
    assert signed(value) == expected
