import fcntl
import gzip
import hashlib
import json
import os
import subprocess
import sys
import time
from errno import ENOSPC
from functools import partial
from pathlib import Path

import itk
import nibabel as nib
import numpy as np
import pytest
from monai.transforms import Lambda
from PIL import Image

from monai_sc.files.write import write_values_like
from monai_sc.folders import simulate as simulation_folder
from monai_sc.folders import simulated_case
from monai_sc.folders.noise_choice import NoiseChoice
from monai_sc.folders.simulate import simulate_folder, summarise_simulation
from monai_sc.folders.simulated_case import SimulationError
from monai_sc.functional import boundary_displacement, case_seed, markov_label_noise
from monai_sc.transforms import RandDilateErodeLabel
from tests.contents import contents
from tests.forked import run_forked

PARAMETERS = {"num_steps": 3, "expansion_prob": 0.8, "march_prob": 0.6, "flip_prob": 0.01}
NOISE = NoiseChoice(PARAMETERS).make
SHAPE_2D, SHAPE_3D = (16, 14), (13, 12, 11)


def simulate(source, out, make_noise=NOISE, **options):
    return simulate_folder(source, out, make_noise, progress=False, **options)


def blob(shape, values=(1,), seed=0):
    """Return boxes of the values, side by side along the first axis, on 0."""
    array = np.zeros(shape, dtype=np.int64)
    low = 2 + seed % 3
    for k, value in enumerate(values):
        width = 6 // len(values)
        array[(slice(low + k * width, low + (k + 1) * width), *[slice(3, 9)] * (len(shape) - 1))] = value
    return array


def write_nifti(path, array, dtype=np.int16):
    image = nib.Nifti1Image(array.astype(dtype), np.diag([-0.7, -0.7, 3.0, 1.0]))
    image.header["descrip"] = b"resident 3"
    image.set_sform(image.affine, code=1)
    image.set_qform(image.affine, code=0)
    nib.save(image, path)


def write_picture(path, array):
    Image.fromarray(array.T.astype(np.uint8)).save(path, dpi=(200, 200))


def write_itk(path, array, dtype=np.uint16):
    image = itk.image_from_array(np.ascontiguousarray(array.T.astype(dtype)))
    image.SetSpacing([0.5 + k for k in range(array.ndim)])
    image.SetOrigin([3.0] * array.ndim)
    itk.imwrite(image, str(path))


def write(path, array):
    path.parent.mkdir(parents=True, exist_ok=True)
    name = path.name.lower()
    if ".nii" in name:
        write_nifti(path, array)
    elif name.endswith((".png", ".bmp")):
        write_picture(path, array)
    else:
        write_itk(path, array)


def read(path):
    """Return the values as another library than the package reads them, axes as MONAI orders them."""
    if ".nii" in path.name:
        return np.asarray(nib.load(path).dataobj)
    if path.suffix.lower() in (".png", ".bmp"):
        with Image.open(path) as picture:
            return np.asarray(picture).T
    return itk.array_from_image(itk.imread(str(path))).T


def header(path):
    if ".nii" in path.name:
        image = nib.load(path)
        return image.header, type(image)
    if path.suffix.lower() in (".png", ".bmp"):
        with Image.open(path) as picture:
            return picture.mode, picture.size, picture.format, picture.info.get("dpi")
    image = itk.imread(str(path))
    geometry = [np.asarray(part).tolist() for part in (image.GetSpacing(), image.GetOrigin(), image.GetDirection())]
    return geometry, itk.array_from_image(image).dtype, itk.array_from_image(image).shape


@pytest.fixture
def masks(tmp_path):
    """Return a folder with four masks of several types, two of one base name."""
    source = tmp_path / "in"
    write(source / "case.png", blob(SHAPE_2D, [255], 0))
    write(source / "site A" / "case.nii.gz", blob(SHAPE_3D, [1], 1))
    write(source / "site B" / "case.nii.gz", blob(SHAPE_3D, [1], 2))
    write(source / "site B" / "Schädel ü1.mha", blob(SHAPE_3D, [1, 4], 2))
    (source / "notes.txt").write_text("not a mask")
    return source


NAMES = ["case.png", "site A/case.nii.gz", "site B/Schädel ü1.mha", "site B/case.nii.gz"]


TYPES = [
    (".nii.gz", SHAPE_3D),
    (".nii", SHAPE_2D),
    (".nrrd", SHAPE_3D),
    (".mha", SHAPE_3D),
    (".mha", SHAPE_2D),
    (".png", SHAPE_2D),
    (".PNG", SHAPE_2D),
    (".bmp", SHAPE_2D),
    (".gipl", SHAPE_3D),
    (".vtk", SHAPE_3D),
    (".tif", SHAPE_2D),
    (".tif", SHAPE_3D),
]


@pytest.mark.parametrize("values", [[255], [1, 2, 7]], ids=["mask", "map"])
@pytest.mark.parametrize(("suffix", "shape"), TYPES, ids=[f"{suffix[1:]}-{len(shape)}d" for suffix, shape in TYPES])
def test_file_keeps_its_form(tmp_path, suffix, shape, values):
    source = tmp_path / "in" / f"a mask{suffix}"
    write(source, blob(shape, values))
    before = contents(tmp_path / "in")
    (entry,) = simulate(tmp_path / "in", tmp_path / "out")
    file = tmp_path / "out" / f"a mask{suffix}"
    assert sorted(contents(tmp_path / "out")) == sorted([file.name, "manifest.jsonl", "simulation.json"])
    assert header(file) == header(source)
    clean, noisy = read(source), read(file)
    assert (clean.dtype, clean.shape) == (noisy.dtype, noisy.shape)
    assert set(np.unique(noisy)) <= {0, *values}
    assert (entry["case"], entry["classes"], entry["label_map"]) == (file.name, values, len(values) > 1)
    assert 0 < np.count_nonzero(clean != noisy) < clean.size / 2
    assert contents(tmp_path / "in") == before


def test_draw_is_that_of_the_seed_and_the_name(masks, tmp_path):
    simulate(masks, tmp_path / "out", seed=7)
    for name, foreground in (("case.png", 255), ("site A/case.nii.gz", 1)):
        state = np.random.RandomState(case_seed(7, name) % 2**32)
        state.rand()
        seed = int(state.randint(2**32, dtype=np.uint64))
        expected = markov_label_noise(read(masks / name)[None] == foreground, **PARAMETERS, seed=seed)
        np.testing.assert_array_equal(read(tmp_path / "out" / name), expected[0] * foreground)
    (masks / "case.png").unlink()
    simulate(masks, tmp_path / "fewer", seed=7)
    (tmp_path / "one").mkdir()
    for name in NAMES[1:]:
        assert (tmp_path / "fewer" / name).read_bytes() == (tmp_path / "out" / name).read_bytes()


def test_manifest_tells_what_was_done(masks, tmp_path):
    manifest = simulate(masks, tmp_path / "out", seed=7)
    before = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")}
    assert simulate(masks, tmp_path / "out", seed=7) == manifest  # and leaves it alone
    assert {file: file.stat().st_mtime_ns for file in (tmp_path / "out").rglob("*")} == before
    lines = (tmp_path / "out" / "manifest.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == manifest
    assert [entry["case"] for entry in manifest] == NAMES
    for entry, classes in zip(manifest, [[255], [1], [1, 4], [1]], strict=True):
        assert entry["classes"] == classes
        assert entry["seed"] == case_seed(7, entry["case"]) % 2**32
        files = masks / entry["case"], tmp_path / "out" / entry["case"]
        assert [hashlib.sha256(f.read_bytes()).hexdigest() for f in files] == [entry["source_sha256"], entry["sha256"]]
        clean, noisy = map(read, files)
        spacing = {".png": None, ".gz": (0.7, 0.7, 3.0), ".mha": (0.5, 1.5, 2.5)}[files[0].suffix]
        for k, value in enumerate(classes):
            a, b = clean == value, noisy == value
            assert entry["voxels_changed"][k] == np.count_nonzero(a != b)
            assert entry["dice"][k] == pytest.approx(2 * (a & b).sum() / (a.sum() + b.sum()), abs=1e-6)
            voxels = boundary_displacement(b[None], a[None])[0]
            assert entry["displacement_voxels"][k] == pytest.approx(voxels, abs=1e-6)
            mm = spacing and pytest.approx(boundary_displacement(b[None], a[None], spacing=spacing)[0], abs=1e-6)
            assert entry["displacement_mm"][k] == mm
    record = json.loads((tmp_path / "out" / "simulation.json").read_text())
    assert (record["seed"], record["cases"], record["source"]) == (7, 4, str(masks))
    assert record["noise"]["parameters"] == PARAMETERS
    rows = summarise_simulation(manifest)
    assert [(row["class"], row["cases"]) for row in rows] == [(1, 3), (4, 1), (255, 1)]
    assert rows[0]["dice"] == pytest.approx(np.mean([entry["dice"][0] for entry in manifest[1:]]))
    assert rows[2]["displacement_mm"] is None


def test_two_workers_write_what_one_writes_at_another_time(masks, tmp_path):
    simulate(masks, tmp_path / "one")
    time.sleep(1.1)  # the time in a gzip header counts seconds
    simulate(masks, tmp_path / "b" / "two", workers=2)
    assert contents(tmp_path / "one") == contents(tmp_path / "b" / "two")
    start = (tmp_path / "one" / NAMES[1]).read_bytes()[:8]
    assert start == b"\x1f\x8b\x08\x00" + bytes(4)  # no name, no time
    (masks / "site A" / "case.nii.gz").write_bytes(b"nonsense")
    with pytest.raises(SimulationError, match=r"site A/case\.nii\.gz cannot be simulated: it cannot be read"):
        simulate(masks, tmp_path / "three", workers=2)
    assert not (tmp_path / "three" / simulation_folder.STAGING).exists()


def test_classes_restrict_what_moves(tmp_path):
    clean = blob(SHAPE_3D, [1, 2, 7])
    write(tmp_path / "in" / "a.nrrd", clean)
    write(tmp_path / "in" / "b.nrrd", blob(SHAPE_3D, [7]))
    first, second = simulate(tmp_path / "in", tmp_path / "out", classes=[2, 1])
    noisy = read(tmp_path / "out" / "a.nrrd")
    np.testing.assert_array_equal(noisy == 7, clean == 7)
    assert (noisy != clean).any()
    assert first["classes"] == second["classes"] == [2, 1]
    assert second["dice"] == [None, None] or second["voxels_changed"] != [0, 0]


@pytest.mark.parametrize(("mm", "grown"), [(2.9, (11, 11, 3)), (3.1, (11, 11, 5))])
def test_size_of_a_voxel_is_that_of_the_file(tmp_path, mm, grown):
    box = np.zeros((21, 21, 9), int)
    box[9:12, 9:12, 3:6] = 1
    write(tmp_path / "in" / "a.nii.gz", box)

    def dilate(classes):
        noise = RandDilateErodeLabel(1.0, radius=(mm, mm), unit="mm")
        noise.noisy_masks = partial(_always_dilate, noise, mm)
        return noise

    simulate(tmp_path / "in", tmp_path / "out", dilate, description={"name": "dilate"})
    hit = np.nonzero(read(tmp_path / "out" / "a.nii.gz"))
    assert tuple(np.ptp(axis) + 1 for axis in hit) == grown


def _always_dilate(noise, mm, masks, label, spacing, seed):
    from monai_sc.functional import shift_boundary

    return shift_boundary(masks, [mm], spacing=spacing)


def test_mm_without_geometry_and_another_foreground_are_refused(masks, tmp_path):
    with pytest.raises(SimulationError, match=r"site A/case\.nii\.gz cannot be simulated: it must hold 0 and 255 only"):
        simulate(masks, tmp_path / "other", foreground=255)
    with pytest.raises(SimulationError, match=r"in/case\.png cannot be simulated: label must be a MetaTensor with an"):
        simulate(masks, tmp_path / "out", NoiseChoice({**PARAMETERS, "unit": "mm"}).make)


def test_empty_mask_has_the_foreground_of_the_others(tmp_path):
    write(tmp_path / "in" / "a.png", np.zeros(SHAPE_2D, int))
    write(tmp_path / "in" / "b.png", blob(SHAPE_2D, [255]))
    flips = NoiseChoice({**PARAMETERS, "flip_prob": 0.5}).make
    empty, _ = simulate(tmp_path / "in", tmp_path / "out", flips)
    assert set(np.unique(read(tmp_path / "out" / "a.png"))) == {0, 255}
    assert (empty["classes"], empty["dice"], empty["displacement_voxels"]) == ([255], [0.0], [None])
    write(tmp_path / "maps" / "a.png", np.zeros(SHAPE_2D, int))
    write(tmp_path / "maps" / "b.png", blob(SHAPE_2D, [1, 2]))
    empty, _ = simulate(tmp_path / "maps", tmp_path / "out of maps", flips)
    assert (empty["classes"], read(tmp_path / "out of maps" / "a.png").max()) == ([], 0)


@pytest.mark.parametrize("dtype", ["u1", "i1", "u2", ">i2", ">i4", "i8", "f4", ">f4", "f8"])
def test_dtype_and_byte_order_are_kept(tmp_path, dtype):
    image = nib.Nifti1Image(
        blob(SHAPE_3D, [1, 100]).astype(dtype),
        np.eye(4),
        nib.Nifti1Header(endianness=">" if dtype[0] == ">" else "<"),
    )
    image.set_data_dtype(dtype)
    (tmp_path / "in").mkdir()
    nib.save(image, tmp_path / "in" / "a.nii")
    simulate(tmp_path / "in", tmp_path / "out")
    assert nib.load(tmp_path / "out" / "a.nii").header == nib.load(tmp_path / "in" / "a.nii").header
    assert set(np.unique(read(tmp_path / "out" / "a.nii"))) == {0, 1, 100}


@pytest.mark.parametrize("values", [[1], [1, 3]], ids=["mask", "map"])
@pytest.mark.parametrize(("slope", "intercept"), [(0.5, 0), (1 / 3, -2)])
def test_scale_is_kept(tmp_path, slope, intercept, values):
    raw = np.rint((blob(SHAPE_3D, values) - intercept) / slope).astype(np.uint8)
    image = nib.Nifti1Image(raw, np.eye(4))
    image.header.set_slope_inter(slope, intercept)
    (tmp_path / "in").mkdir()
    nib.save(image, tmp_path / "in" / "a.nii")
    (entry,) = simulate(tmp_path / "in", tmp_path / "out")
    assert entry["classes"] == pytest.approx(values)
    a, b = (nib.load(tmp_path / folder / "a.nii") for folder in ("in", "out"))
    assert (a.dataobj.slope, a.dataobj.inter) == (b.dataobj.slope, b.dataobj.inter)
    assert set(np.unique(b.dataobj.get_unscaled())) == set(np.unique(raw))


def test_value_that_a_type_cannot_hold_is_refused(tmp_path):
    write_picture(tmp_path / "a.png", blob(SHAPE_2D))
    with pytest.raises(ValueError, match=r"values must fit the type of .*a\.png, uint8, which cannot hold 256\."):
        write_values_like(blob(SHAPE_2D, [256]), tmp_path / "b.png", tmp_path / "a.png")


KILL = """
import os, signal, sys
from pathlib import Path
from monai_sc.folders.noise_choice import NoiseChoice
from monai_sc.folders.simulate import simulate_folder

def run(out, kill_at):
    left = [kill_at]
    def hook(event, args):
        if event in ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir") and str(out) in str(args[0]):
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
    child = os.fork()
    if child == 0:
        sys.addaudithook(hook)
        simulate_folder(sys.argv[1], out, NoiseChoice(PARAMETERS).make, progress=False)
        os._exit(0)
    return os.waitpid(child, 0)[1]

simulate_folder(sys.argv[1], sys.argv[3], NoiseChoice(PARAMETERS).make, progress=False)  # to load and compile once
for kill_at in range(1, 1000):
    out = Path(sys.argv[2]) / f"{kill_at:03d}"
    status = run(out, kill_at)
    if status == 0:
        break
    assert status == signal.SIGKILL, status
    simulate_folder(sys.argv[1], out, NoiseChoice(PARAMETERS).make, progress=False)
"""


def test_run_that_was_killed_goes_on(tmp_path):
    """Killed before each thing that it does to a file, and called again, it ends with the same bytes."""
    masks = tmp_path / "in"
    write(masks / "a.png", blob(SHAPE_2D, [255]))
    write(masks / "b" / "a.nii.gz", blob(SHAPE_2D))
    simulate(masks, tmp_path / "whole")
    script = KILL.replace("PARAMETERS", repr(PARAMETERS))
    run_forked(["-c", script, masks, tmp_path / "killed", tmp_path / "first"], timeout=120).check_returncode()
    folders = sorted((tmp_path / "killed").iterdir())
    assert len(folders) > 20
    expected = contents(tmp_path / "whole")
    for folder in folders:
        assert contents(folder) == expected, folder


@pytest.mark.slow
def test_workers_end_with_a_run_that_is_killed(tmp_path):
    source, out = tmp_path / "in", tmp_path / "out"
    for k in range(60):
        write(source / f"{k:03d}.nii.gz", blob(SHAPE_3D, seed=k))
    options = [f"--{name.replace('_', '-')}={value}" for name, value in PARAMETERS.items()]
    command = [sys.executable, "-m", "monai_sc", "simulate", source, out, *options, "--workers=2", "--quiet"]
    with subprocess.Popen(command, start_new_session=True) as process:
        while len(list(out.glob("*.nii.gz"))) < 3:
            assert process.poll() is None
            time.sleep(0.02)
        process.kill()
    for _ in range(100):
        if not _session(process.pid):
            break
        time.sleep(0.1)
    assert not _session(process.pid)
    assert len(list(out.glob("*.nii.gz"))) < 60
    simulate(source, tmp_path / "whole", description=NoiseChoice(PARAMETERS).description())
    simulate(source, out, description=NoiseChoice(PARAMETERS).description())
    assert contents(out) == contents(tmp_path / "whole")


def _session(leader):
    """Return the living processes of a session, zombies not counted."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rsplit(")", 1)[1].split()[:4]
        except OSError:  # it has just ended
            continue
        if int(session) == leader and state != "Z":
            found.append(stat.parent.name)
    return found


def test_torn_line_of_a_killed_run_is_done_again(masks, tmp_path):
    simulate(masks, tmp_path / "whole")
    out = tmp_path / "out"
    simulate(masks, out)
    lines = (out / "manifest.jsonl").read_bytes().splitlines(keepends=True)
    (out / "manifest.jsonl").unlink()
    (out / simulation_folder.PROGRESS).write_bytes(lines[2] + lines[0] + lines[1][:60])
    (out / NAMES[3]).unlink()
    (out / NAMES[2]).unlink()  # noted, but not there: as if it had not been noted
    simulate(masks, out)
    assert contents(out) == contents(tmp_path / "whole")


def _full_disk(*_, **__):
    raise OSError(ENOSPC, os.strerror(ENOSPC))


@pytest.mark.parametrize("place", ["file", "list"])
def test_full_disk_leaves_no_half_file(masks, tmp_path, monkeypatch, place):
    simulate(masks, tmp_path / "whole")
    calls = []

    def second_fails(function, *args, **kwargs):
        calls.append(0)
        if len(calls) != 2:
            return function(*args, **kwargs)
        if place == "file":
            args[1].write_bytes(b"half")
        return _full_disk()

    module, name = (simulated_case, "write_values_like") if place == "file" else (os, "replace")
    with monkeypatch.context() as patch:
        patch.setattr(module, name, partial(second_fails, getattr(module, name)))
        with pytest.raises(SimulationError, match=r"case\.(nii\.gz|png) could not be \w+: No space left on device\.$"):
            simulate(masks, tmp_path / "out")
    files = contents(tmp_path / "out")
    assert set(files) <= {"simulation.json", simulation_folder.PROGRESS, "case.png"}
    simulate(masks, tmp_path / "out")
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def packed_with_a_wrong_checksum():
    packed = bytearray(gzip.compress(nib.Nifti1Image(np.ones((4, 4, 4), dtype=np.uint8), np.eye(4)).to_bytes(), 0))
    packed[-20] ^= 1
    return bytes(packed)


BAD_FILES = [
    pytest.param("a.nii.gz", packed_with_a_wrong_checksum(), r"it cannot be read: CRC check failed", id="checksum"),
    pytest.param(
        "a.nii",
        lambda f: nib.save(nib.Nifti1Image(np.full((3, 3, 3), 2**53), np.eye(4), dtype=np.int64), f),
        r"it must hold values under 2\*\*53",
        id="large",
    ),
    pytest.param("a.nii.gz", b"nonsense", r"a\.nii\.gz cannot be simulated: it cannot be read", id="nonsense"),
    pytest.param(
        "a.png",
        lambda f: Image.new("RGB", (9, 8)).save(f),
        r"a\.png cannot be simulated: it must hold one channel, got 3\.$",
        id="colours",
    ),
    pytest.param(
        "a.nii",
        lambda f: write_nifti(f, np.linspace(0, 1, 27).reshape(3, 3, 3), np.float32),
        r"it must hold 0 and one other value, or whole numbers",
        id="probabilities",
    ),
    pytest.param(
        "a.nii",
        lambda f: write_nifti(f, np.full((3, 3, 3), np.nan), np.float32),
        r"it must hold numbers, got nan or infinity\.$",
        id="nan",
    ),
    pytest.param(
        "a.nii",
        lambda f: write_nifti(f, np.arange(1000).reshape(10, 10, 10)),
        r"it holds more than 255 values, as an image does; give the folder of the labels",
        id="image",
    ),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD_FILES)
def test_bad_file_is_named(tmp_path, name, content, message):
    write(tmp_path / "in" / "0.png", blob(SHAPE_2D))
    file = tmp_path / "in" / name
    file.write_bytes(content) if isinstance(content, bytes) else content(file)
    with pytest.raises(SimulationError, match=message) as caught:
        simulate(tmp_path / "in", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(file) in str(caught.value)


ARGUMENTS = [
    ({"workers": 0}, ValueError, r"workers must be at least 1 and seed at least 0, got 0 and 0\."),
    ({"seed": -1}, ValueError, r"workers must be at least 1 and seed at least 0, got 1 and -1\."),
    ({"foreground": 1, "classes": [1]}, ValueError, r"foreground is of binary masks and classes of label maps"),
    ({"foreground": 0}, ValueError, r"foreground must be the value of the foreground in the files, over 0, got 0\."),
    ({"classes": [1, 1]}, ValueError, r"classes must be one or more values, each once and not 0, got \[1, 1\]\."),
    ({"calibrate": dict}, ValueError, r"description must be given with calibrate"),
    ({"make_noise": lambda _: Lambda(abs)}, TypeError, r"make_noise must make a Randomizable .*, got Lambda\."),
]


@pytest.mark.parametrize(("options", "error", "message"), ARGUMENTS, ids=[next(iter(o)) for o, _, _ in ARGUMENTS])
def test_unfit_argument_is_refused(masks, tmp_path, options, error, message):
    with pytest.raises(error, match=message):
        simulate(masks, tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


SOURCES = [
    pytest.param(lambda s: (s / "CASE.png").write_bytes(b""), r"CASE\.png and case\.png in .* one name", id="case"),
    pytest.param(lambda s: (s / "more").symlink_to(s / "site A"), r"more is a link to a folder", id="folder-link"),
    pytest.param(lambda s: (s / "b.mhd").write_bytes(b""), r"b\.mhd keeps header and voxels in two files", id="mhd"),
    pytest.param(
        lambda s: (s / "site A").rename(s / "manifest.jsonl"), r"must not hold a folder manifest\.jsonl", id="manifest"
    ),
    pytest.param(
        lambda s: os.close(os.open(os.fsencode(s) + b"/\xff.png", os.O_CREAT)), r"not valid UTF-8", id="bytes"
    ),
]


@pytest.mark.parametrize(("change", "message"), SOURCES)
def test_unfit_source_is_refused(masks, tmp_path, change, message):
    change(masks)
    with pytest.raises(ValueError, match=message):
        simulate(masks, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_absent_or_empty_source_and_a_file_as_target_are_refused(masks, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"absent is (no|not a) folder\."):
        simulate(tmp_path / "absent", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden.png").write_bytes(b"")
    with pytest.raises(ValueError, match=r"empty holds no mask file, \.nii, \.nii\.gz,"):
        simulate(tmp_path / "empty", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    (tmp_path / "out").write_text("")
    with pytest.raises(ValueError, match=r"out must be a folder, but is a file\."):
        simulate(masks, tmp_path / "out")


def _linked(masks):
    link = masks.parent / "link"
    link.symlink_to(masks)
    return link


PLACES = [
    pytest.param(lambda m: m, id="same"),
    pytest.param(lambda m: m / "site A" / "out", id="inside"),
    pytest.param(lambda m: m.parent, id="around"),
    pytest.param(_linked, id="link"),
]


@pytest.mark.parametrize("place", PLACES)
def test_folder_of_the_clean_masks_is_never_written_to(masks, place):
    out = place(masks)
    before = contents(masks.parent)
    with pytest.raises(ValueError, match=r"must not go into the folder of the clean ones or around it"):
        simulate(masks, out)
    assert contents(masks.parent) == before


FOREIGN = [
    pytest.param(lambda out: (out / "case.png").write_bytes(b"mine"), r"holds case\.png", id="mask"),
    pytest.param(lambda out: (out / "manifest.jsonl").write_bytes(b""), r"holds manifest\.jsonl", id="manifest"),
    pytest.param(lambda out: (out / "site A").symlink_to(out.parent / "in" / "site A"), r"holds site A", id="link"),
]


@pytest.mark.parametrize(("add", "message"), FOREIGN)
def test_folder_with_other_files_is_refused(masks, tmp_path, add, message):
    out = tmp_path / "out"
    out.mkdir()
    add(out)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message + r", which this simulation did not write; choose an empty or a new"):
        simulate(masks, out)
    assert contents(tmp_path) == before


def _rewrite(path):
    write(path, blob(SHAPE_2D, [255], seed=2))


OTHERS = [
    pytest.param({"seed": 1}, None, r"holds a simulation with seed 0, but 1 was asked for", id="seed"),
    pytest.param(
        {"make_noise": NoiseChoice({**PARAMETERS, "num_steps": 4}).make},
        None,
        r"with noise\.parameters\.num_steps 3, but 4 was asked for; choose another folder\.$",
        id="noise",
    ),
    pytest.param({"foreground": 1}, None, r"with foreground None, but 1 was asked for", id="foreground"),
    pytest.param({}, lambda s, o: write(s / "d.png", blob(SHAPE_2D)), r"\(4 then, 5 now\)", id="more"),
    pytest.param({}, lambda s, o: (s / "case.png").rename(s / "d.png"), r"\(4 then, 4 now\)", id="renamed"),
    pytest.param({}, lambda s, o: _rewrite(s / "case.png"), r"in/case\.png has changed since .*out was", id="source"),
    pytest.param({}, lambda s, o: _rewrite(o / "case.png"), r"out/case\.png has changed since it was", id="result"),
    pytest.param({}, lambda s, o: (o / "case.png").unlink(), r"out/case\.png is missing; choose", id="missing"),
    pytest.param({}, lambda s, o: (o / "mine.txt").write_text(""), r"holds mine\.txt, which this", id="foreign"),
    pytest.param(
        {}, lambda s, o: (o / "manifest.jsonl").write_text("{"), r"manifest\.jsonl is damaged; delete", id="damaged"
    ),
]


@pytest.mark.parametrize(("options", "change", "message"), OTHERS)
def test_another_simulation_is_refused(masks, tmp_path, options, change, message):
    out = tmp_path / "out"
    simulate(masks, out)
    if change:
        change(masks, out)
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=message):
        simulate(masks, out, **options)
    assert contents(tmp_path) == before


def test_file_that_another_wrote_meanwhile_is_not_replaced(masks, tmp_path, monkeypatch):
    out = tmp_path / "out"

    def write_and_meddle(*args, **kwargs):
        (out / "case.png").write_bytes(b"mine")
        return write_values_like(*args, **kwargs)

    monkeypatch.setattr(simulated_case, "write_values_like", write_and_meddle)
    with pytest.raises(SimulationError, match=r"out/case\.png is not the file that this simulation writes"):
        simulate(masks, out)
    assert (out / "case.png").read_bytes() == b"mine"


def test_two_runs_do_not_share_a_folder(masks, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    descriptor = os.open(out, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.raises(ValueError, match=r"Another run writes into .*out right now; wait for it\."):
            simulate(masks, out)
    finally:
        os.close(descriptor)
    simulate(masks, out)


def test_calibration_is_done_once(masks, tmp_path, monkeypatch):
    seen = []

    def calibrate(clean, spacings):
        seen.append([mask.sum() for mask in clean])
        assert [mask.dtype for mask in clean] == [bool] * 4
        assert [len(mask) for mask in clean] == [1, 1, 2, 1]
        assert spacings[0] is None
        assert spacings[1] == pytest.approx((0.7, 0.7, 3.0))
        return {"num_steps": 2, "dice": 0.9}

    choice = NoiseChoice({"expansion_prob": 0.8, "march_prob": 0.6}, target_dice=0.9)
    options = {"description": choice.description(), "calibrate": calibrate, "make_noise": choice.make}
    write = simulated_case.write_values_like
    written = []

    def write_one(*arguments):
        written.append(arguments)
        return _full_disk() if len(written) > 1 else write(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(simulated_case, "write_values_like", write_one)
        with pytest.raises(SimulationError, match="No space left"):
            simulate(masks, tmp_path / "out", **options)
    simulate(masks, tmp_path / "out", **options)
    simulate(masks, tmp_path / "out", **options)
    assert len(seen) == 1
    record = json.loads((tmp_path / "out" / "simulation.json").read_text())
    assert record["calibration"] == {"num_steps": 2, "dice": 0.9, "sample": NAMES}
    told = NoiseChoice({"num_steps": 2, "expansion_prob": 0.8, "march_prob": 0.6})
    simulate(masks, tmp_path / "told", told.make)
    assert (tmp_path / "told" / NAMES[1]).read_bytes() == (tmp_path / "out" / NAMES[1]).read_bytes()


def test_a_mistake_before_the_first_file_does_not_bind_the_folder(masks, tmp_path):
    wrong = NoiseChoice({"num_steps": 2, "expansion_prob": 0.8, "march_prob": 0.6, "in_plane": True})
    with pytest.raises(SimulationError, match=r"in_plane needs a label with 3 spatial axes|with an affine"):
        simulate(masks, tmp_path / "out", wrong.make)
    right = NoiseChoice({"num_steps": 2, "expansion_prob": 0.8, "march_prob": 0.6})
    assert len(simulate(masks, tmp_path / "out", right.make)) == 4
