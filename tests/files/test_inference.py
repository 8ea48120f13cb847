import pytest

from monai_sc.files import check_images, check_weights, image_files


def test_images_are_found_below_the_folder(tmp_path):
    folder = tmp_path / "a [b]"
    for name in ("b.png", "more/a.png", "._b.png", "c.jpg", "d.png/x"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    assert image_files(folder, "*.png") == [str(folder / "b.png")]
    assert image_files(folder, "**/*.png") == [str(folder / "b.png"), str(folder / "more" / "a.png")]


def test_no_images_are_refused(tmp_path):
    check_images(["a.png"], tmp_path, "*.png")
    with pytest.raises(ValueError, match=r"must hold images \*\.png; correct dataset_dir or pattern\.$"):
        check_images(image_files(tmp_path, "*.png"), tmp_path, "*.png")
    gone = tmp_path / "gone"
    with pytest.raises(ValueError, match=r"gone must exist, since it holds the images; correct dataset_dir or"):
        check_images(image_files(gone, "*.png"), gone, "*.png")


def test_missing_weights_are_refused(tmp_path):
    file = tmp_path / "model.pt"
    with pytest.raises(
        ValueError, match=r"Weights .*model\.pt must exist; train the network first, or correct ckpt_dir"
    ):
        check_weights(file)
    file.touch()
    check_weights(file)
