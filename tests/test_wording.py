import pytest

from monai_sc.wording import counted


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [(0, "case", "0 cases"), (1, "clean case", "1 clean case"), (2, "case", "2 cases"), (2, "class", "2 classes")],
)
def test_noun_follows_its_number(number, noun, expected):
    assert counted(number, noun) == expected
