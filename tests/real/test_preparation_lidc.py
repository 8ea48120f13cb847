"""The slices of LIDC-IDRI by four readers, as the layout of the data set reads them."""

from __future__ import annotations

import numpy as np
import pytest

from monai_sc.datasets.lidc_idri.layout import LidcIdriLayout

pytestmark = pytest.mark.realdata


def test_every_slice_is_read_and_the_readers_often_disagree(lidc):
    layout = LidcIdriLayout(lidc)
    cases = layout.cases()
    assert len({case.group for case in cases}) == 146
    assert len(cases) == 2844
    empty = undrawn = 0
    for case in cases:
        content = layout.read(case)
        assert content.image.shape == content.labels.shape == content.noisy.shape == (1, 128, 128)
        assert not (content.labels & ~content.noisy).any()
        empty += not content.labels.any()
        undrawn += not content.noisy.any()
    assert empty == 1471  # counted apart, from the files
    assert undrawn == 12


def test_fewer_truths_are_empty_with_two_readers_who_agree(lidc):
    strict, half = (LidcIdriLayout(lidc, agreement=agreement) for agreement in (3, 2))
    cases = strict.cases()[::7]
    sizes = np.array([[part.read(case).labels.sum() for part in (strict, half)] for case in cases])
    assert (sizes[:, 0] <= sizes[:, 1]).all()
    assert (sizes[:, 0] == 0).sum() > (sizes[:, 1] == 0).sum() > 0
