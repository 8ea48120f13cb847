from __future__ import annotations

import pytest
import torch

from monai_sc.benchmark.methods import select_small_loss

ALL = [1, 1, 1, 1]
CASES = [
    pytest.param([4, 1, 3, 2], ALL, 0.5, [0, 1, 0, 1], id="half-of-all"),
    pytest.param([4, 1, 3, 2], [1, 0, 1, 1], 0.67, [0, 0, 1, 1], id="two-of-three-candidates"),
    pytest.param([4, 1, 3, 2], ALL, 1, ALL, id="all"),
    pytest.param([4, 1, 3, 2], ALL, 0, [0, 1, 0, 0], id="one-at-least"),
    pytest.param([4, 1, 3, 2], [0, 0, 0, 0], 1, [0, 0, 0, 0], id="no-candidate"),
    pytest.param([2, 1, 1, 1], ALL, 0.5, [0, 1, 1, 0], id="of-equal-losses-the-first"),
    pytest.param([4, 1, 3, 2], ALL, 0.375, [0, 1, 0, 1], id="1.5-is-rounded-to-2"),
    pytest.param([4, 1, 3, 2], ALL, 0.625, [0, 1, 0, 1], id="2.5-is-rounded-to-2"),
    pytest.param([float("nan"), float("inf"), 1, 2], ALL, 0.5, [0, 0, 1, 1], id="not-finite-is-largest"),
    pytest.param([0, float("nan"), 1, float("inf")], [0, 1, 0, 1], 1, [0, 1, 0, 1], id="not-finite-candidates"),
]


@pytest.mark.parametrize(("loss", "candidates", "fraction", "expected"), CASES)
def test_candidates_with_small_loss_are_selected(loss, candidates, fraction, expected):
    selected = select_small_loss(
        torch.tensor([[loss]], dtype=torch.float32), torch.tensor([[candidates]]) > 0, fraction
    )
    assert selected.dtype == torch.bool
    assert selected.int().tolist() == [[expected]]


def select_one_by_one(loss, candidates, fraction):
    """Return what the definition says, image by image and voxel by voxel."""
    selected = torch.zeros(loss.shape, dtype=torch.bool)
    for image in range(loss.shape[0]):
        for group in range(loss.shape[1]):
            own, allowed = loss[image, group].flatten(), candidates[image, group].flatten()
            ranked = sorted((float(own[v]), v) for v in range(len(own)) if allowed[v])
            for _, voxel in ranked[: max(1, round(fraction * len(ranked)))]:
                selected[image, group].view(-1)[voxel] = True
    return selected


@pytest.mark.parametrize("fraction", [0, 0.3, 0.8, 1])
@pytest.mark.parametrize("shape", [(3, 2, 7, 5), (2, 1, 4, 3, 5)], ids=["2d", "3d"])
def test_each_image_and_group_is_selected_by_itself(shape, fraction):
    generator = torch.Generator().manual_seed(0)
    loss = torch.randint(6, shape, generator=generator).float()  # with many ties
    candidates = torch.rand(shape, generator=generator) < 0.6
    candidates[0, 0] = False
    before = loss.clone(), candidates.clone()
    selected = select_small_loss(loss, candidates, fraction)
    assert torch.equal(selected, select_one_by_one(loss, candidates, fraction))
    assert torch.equal(loss, before[0])
    assert torch.equal(candidates, before[1])


@pytest.mark.parametrize("fraction", [-0.1, 1.1])
def test_fraction_out_of_range_is_refused(fraction):
    with pytest.raises(ValueError, match=rf"keep_fraction must be in \[0, 1\], got {fraction}\.$"):
        select_small_loss(torch.zeros(1, 1, 2), torch.ones(1, 1, 2) > 0, fraction)


def test_other_shape_is_refused():
    with pytest.raises(
        ValueError, match=r"loss and candidates must have the same shape, got \(1, 1, 2\) and \(1, 1, 3\)"
    ):
        select_small_loss(torch.zeros(1, 1, 2), torch.ones(1, 1, 3) > 0, 0.5)


@pytest.mark.parametrize(
    ("loss", "candidates", "error", "message"),
    [
        pytest.param(
            torch.zeros(2, 3), torch.ones(2, 3) > 0, ValueError, r"shape \(batch, groups, .*\(2, 3\)", id="axis"
        ),
        pytest.param(
            torch.ones(1, 1, 2).int(), torch.ones(1, 1, 2) > 0, TypeError, r"got torch\.int32 and", id="whole"
        ),
        pytest.param(torch.ones(1, 1, 2), torch.ones(1, 1, 2), TypeError, r"and torch\.float32\.$", id="no-booleans"),
    ],
)
def test_what_is_no_loss_of_voxels_is_refused(loss, candidates, error, message):
    with pytest.raises(error, match=message):
        select_small_loss(loss, candidates, 0.5)
