"""Labels of every form that a NIfTI, NRRD or MetaImage file can have, written by a store and read again."""

from __future__ import annotations

import gzip
import itertools
import re
import struct
import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import itk
import nibabel as nib
import numpy as np
import pytest
from monai.transforms import LoadImage
from nibabel.openers import ImageOpener
from scipy.spatial import KDTree
from scipy.spatial.transform import Rotation

from monai_sc.files.write import write_label_like
from monai_sc.store import LabelStore

NIFTI = {
    ".nii": (nib.Nifti1Image, "<"),
    ".nii.gz": (nib.Nifti1Image, "<"),
    "big-endian.nii": (nib.Nifti1Image, ">"),
    "big-endian.nii.gz": (nib.Nifti1Image, ">"),
    "nifti-2.nii": (nib.Nifti2Image, "<"),
    "nifti-2.nii.gz": (nib.Nifti2Image, "<"),
}
NRRD = {
    ".nrrd": ("gzip", "little", "LPS"),
    "raw big-endian RAS.nrrd": ("raw", "big", "RAS"),
}
METAIMAGE = {".mha": (True, False), "raw.mha": (False, False), "big-endian.mha": (True, True)}
FORMATS = [*NIFTI, *NRRD, *METAIMAGE]
FORMS = ["sform", "qform", "both", "different", "neither"]
SLOPES = {"sform": 1, "qform": 0, "both": np.nan, "different": 1, "neither": 0}  # each says that nothing is scaled
# ITK's Python package, by which MONAI reads these files, has no signed integers of 8 and 64 bits.
ITK_TYPES = ["uint8", "int16", "uint16", "int32", "uint32", "uint64", "float32", "float64"]
EXTENSIONS = [  # of NIfTI: size, code, content; more space than it needs, as some writers leave
    (48, 6, b"drawn on the second screen"),
    (128, 4, b"<?xml version='1.0' ?><AFNI_attributes />"),
    (208, 44, bytes(range(200))),  # a code that nibabel does not know
]
TYPES = [*ITK_TYPES, "int8", "int64", "scaled int16", "scaled uint16", "scaled int32"]
SPACINGS = [(0.5, 6.0, 1.3), (0.7, 0.7, 3.0), (6.0, 0.5, 2.0), (1.0, 1.0, 1.0), (1 / 3, 0.9, 5.5)]
SHAPES = [(9, 7, 5), (9, 7, 2), (8, 7, 5, 1), (9, 7, 1)]
OBLIQUE = Rotation.from_euler("xy", [20, 20], degrees=True).as_matrix()
AXES = {  # columns: where the axes of the array point to, in RAS
    "RAS": np.eye(3),
    "LPS": np.diag([-1.0, -1.0, 1.0]),
    "PIR": np.array([[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]]),
    "oblique": OBLIQUE,
    "oblique PIR": OBLIQUE @ [[0.0, 0, 1], [-1, 0, 0], [0, -1, 0]],
    "sheared": np.array([[1.0, 0.3, 0], [0, 0.95, 0.1], [0, 0, 0.99]]),
}
TO_LPS = np.diag([-1.0, -1.0, 1.0, 1.0])
NRRD_SPACES = {"LPS": "left-posterior-superior", "RAS": "right-anterior-superior"}
MET_TYPES = {"int16": "MET_SHORT", "int32": "MET_INT", "int64": "MET_LONG_LONG", "uint8": "MET_UCHAR"}
MET_TYPES |= {"uint16": "MET_USHORT", "uint32": "MET_UINT", "uint64": "MET_ULONG_LONG"}
MET_TYPES |= {"float32": "MET_FLOAT", "float64": "MET_DOUBLE"}


@dataclass(frozen=True)
class Kind:
    """One kind of label file; ``form`` says which transforms a NIfTI header has."""

    file_format: str
    orientation: str
    form: str
    dtype: str
    shape: tuple[int, ...]
    spacing: tuple[float, ...]

    @property
    def affine(self):
        return nib.affines.from_matvec(AXES[self.orientation] * self.spacing, [-31.7, 12.3, 101.9])


def kinds(file_format, orientation, *, product=False):
    """Return kinds with every data type and form; every pair of them, if ``product``."""
    types = TYPES if file_format in NIFTI else ITK_TYPES
    forms = FORMS if file_format in NIFTI else ["both"]
    if orientation == "sheared":
        forms = ["sform"]
    pairs = itertools.product(types, forms) if product else zip(types, itertools.cycle(forms), strict=False)
    cycles = zip(pairs, itertools.cycle(SHAPES), itertools.cycle(SPACINGS), strict=False)
    some = [Kind(file_format, orientation, form, dtype, *rest) for (dtype, form), *rest in cycles]
    if file_format in NRRD:  # of which ITK reads a fourth axis as the components of a vector
        return [replace(kind, shape=kind.shape[:3]) for kind in some]
    return some


def mask_of(shape, seed):
    return np.random.RandomState(seed).rand(*shape) < 0.4


def write_source(kind, path, seed):
    write = {".nrrd": write_nrrd, ".mha": write_metaimage}.get(path.suffix, write_nifti)
    write(kind, path, mask_of(kind.shape, seed))


def write_nifti(kind, path, mask):
    image_class, endianness = NIFTI[kind.file_format]
    dtype = np.dtype(kind.dtype.removeprefix("scaled ")).newbyteorder(endianness)
    header = image_class.header_class(endianness=endianness)
    header.set_data_dtype(dtype)
    header.set_data_shape(kind.shape)
    header.set_zooms([*kind.spacing, 2.5][: len(kind.shape)])
    other = nib.affines.from_matvec(AXES["oblique"] * kind.spacing, [5, 6, 7])
    if kind.form != "sform" and kind.form != "neither":
        header.set_qform(kind.affine if kind.form != "different" else other, code=1)
    if kind.form != "qform" and kind.form != "neither":
        header.set_sform(kind.affine, code=4 if kind.form == "different" else 2)
    texts = {"descrip": b"resident 3, second reading", "aux_file": b"atlas.lut", "intent_name": b"liver"}
    numbers = {"intent_code": 1002, "intent_p1": 3.5, "intent_p2": -1, "toffset": 12.25, "slice_code": 2}
    numbers |= {"slice_end": 1, "slice_duration": 0.5, "cal_max": 1, "cal_min": -0.5, "dim_info": 57, "xyzt_units": 18}
    if image_class is nib.Nifti1Image:  # the fields that are left of Analyze, which readers ignore
        texts |= {"db_name": b"trial 7", "data_type": b"mask"}
        numbers |= {"glmax": 255, "glmin": -3, "extents": 16384, "session_error": 2}
    for name, value in (texts | numbers).items():
        header[name] = value
    background, foreground = 0, 1
    header["scl_slope"] = SLOPES[kind.form]
    if "scaled" in kind.dtype:  # over the range of the type, so that the foreground reads 0.99998 or nearer to 1
        limits = np.iinfo(dtype)
        background, foreground = limits.min, limits.max
        header["scl_slope"] = 1 / (limits.max - limits.min + 1)
        header["scl_inter"] = -limits.min * header["scl_slope"]
    voxels = np.where(mask, foreground, background).astype(dtype)
    extensions = b"".join(
        struct.pack(f"{endianness}ii", size, code) + content.ljust(size - 8, b"\0")
        for size, code, content in EXTENSIONS
    )
    header["vox_offset"] = header.single_vox_offset + len(extensions)
    with ImageOpener(str(path), "wb") as file:
        file.write(header.binaryblock + b"\1\0\0\0" + extensions + voxels.tobytes("F"))


def write_nrrd(kind, path, mask):
    encoding, endian, space = NRRD[kind.file_format]
    in_space = kind.affine if space == "RAS" else TO_LPS @ kind.affine
    vectors = ["(" + ",".join(map(repr, vector)) + ")" for vector in in_space[:3].T.tolist()]
    name = {"float32": "float", "float64": "double"}.get(kind.dtype, kind.dtype)
    header = f"""NRRD0005
# written by hand
content: label of the liver
type: {name}
dimension: 3
space: {NRRD_SPACES[space]}
sizes: {" ".join(map(str, kind.shape))}
space directions: {" ".join(vectors[:3])}
centerings: cell cell node
kinds: domain domain space
labels: "i" "j" "k"
space units: "mm" "mm" "mm"
endian: {endian}
encoding: {encoding}
old min: -3
space origin: {vectors[3]}
measurement frame: (0,1,0) (1,0,0) (0,0,1)
Segment0_Name:=liver
Reader:=resident 3: second reading
"""
    voxels = mask.astype(np.dtype(kind.dtype).newbyteorder(endian)).tobytes("F")
    path.write_bytes(header.encode() + b"\n" + (gzip.compress(voxels) if encoding == "gzip" else voxels))


def write_metaimage(kind, path, mask):
    compressed, big = METAIMAGE[kind.file_format]
    geometry, dimension = np.eye(5), mask.ndim
    geometry[:3, :3], geometry[:3, 4] = (TO_LPS @ kind.affine)[:3, :3], (TO_LPS @ kind.affine)[:3, 3]
    spacing = np.linalg.norm(geometry[:4, :4], axis=0)
    voxels = mask.astype(np.dtype(kind.dtype).newbyteorder(">" if big else "<")).tobytes("F")
    voxels = zlib.compress(voxels, 9) if compressed else voxels
    numbers = {
        "TransformMatrix": (geometry[:4, :4] / spacing)[:dimension, :dimension].T.ravel(),
        "Offset": geometry[:dimension, 4],
        "CenterOfRotation": np.arange(1.0, dimension + 1),
        "ElementSpacing": spacing[:dimension],
        "ElementSize": spacing[:dimension] * 2,
    }
    fields = {
        "ObjectType": "Image",
        "NDims": dimension,
        "Comment": "label of the liver",
        "BinaryData": True,
        "BinaryDataByteOrderMSB": big,
        "CompressedData": compressed,
        **({"CompressedDataSize": len(voxels)} if compressed else {}),
        **{name: " ".join(map(repr, values.tolist())) for name, values in numbers.items()},
        "AnatomicalOrientation": "RAI",
        "Modality": "MET_MOD_CT",
        "Reader": "resident 3, second reading",
        "DimSize": " ".join(map(str, kind.shape)),
        "ElementType": MET_TYPES[kind.dtype],
        "ElementDataFile": "LOCAL",
    }
    path.write_bytes("".join(f"{name} = {value}\n" for name, value in fields.items()).encode() + voxels)


def nibabel_points(path, mask=None):
    """Return where the foreground of a file lies, or that of a mask on its grid, in mm of RAS."""
    image = nib.load(path)
    inside = np.asarray(image.dataobj) > 0.5 if mask is None else mask
    return nib.affines.apply_affine(image.affine, np.argwhere(inside)[:, :3])


def monai_points(path, mask=None):
    image = LoadImage(image_only=True, ensure_channel_first=True)(path)
    inside = image.numpy()[0] > 0.5 if mask is None else mask.reshape(image.shape[1:])
    return nib.affines.apply_affine(image.affine.numpy(), np.argwhere(inside)[:, :3])


def itk_points(path, mask=None):
    image = itk.imread(str(path), itk.F)
    values = itk.array_from_image(image).T
    inside = values > 0.5 if mask is None else mask.reshape(values.shape)  # of a NIfTI file without a last axis of one
    matrix = itk.array_from_matrix(image.GetDirection()) * image.GetSpacing()
    return (np.argwhere(inside) @ matrix.T + image.GetOrigin())[:, :3] * [-1, -1, 1]


def points_off(found, expected):
    """Return how many points of either set are not within a micrometre of one of the other."""
    pairs = ((found, expected), (expected, found))
    return sum(int((KDTree(a).query(b)[0] > 1e-3).sum()) for a, b in pairs)


def nifti_parts(path, image_class):
    """Return each field of the header as its bytes, and what lies between it and the voxels."""
    with ImageOpener(str(path)) as file:
        content = file.read()
    size = image_class.header_class.template_dtype.itemsize
    header = image_class.header_class(content[:size], check=False)
    parts = {name: header[name].tobytes() for name in header.keys()}  # noqa: SIM118 - a header is no dictionary
    return parts | {"extensions": content[size : int(header["vox_offset"])], "endianness": header.endianness}


def text_parts(path):
    """Return the lines of the header; the size of compressed voxels depends on them."""
    header = re.match(rb"NRRD.*?\n\n|.*?ElementDataFile = LOCAL\n", path.read_bytes(), re.DOTALL).group()
    lines = [line for line in header.splitlines() if not line.startswith(b"CompressedDataSize")]
    return {str(line): number for number, line in enumerate(lines)}


def itk_parts(path):
    """Return the geometry, type and metadata of a file as ITK reads them, ``None`` if it cannot."""
    reader = itk.ImageIOFactory.CreateImageIO(str(path), itk.CommonEnums.IOFileMode_ReadMode)
    if reader is None:  # NIfTI-2
        return None
    reader.SetFileName(str(path))
    try:
        reader.ReadImageInformation()
    except RuntimeError:  # sheared
        return None
    entries = reader.GetMetaDataDictionary()
    axes = range(reader.GetNumberOfDimensions())
    return {key: str(entries[key]) for key in entries.GetKeys()} | {
        "spacing": [reader.GetSpacing(axis) for axis in axes],
        "origin": [reader.GetOrigin(axis) for axis in axes],
        "direction": [list(reader.GetDirection(axis)) for axis in axes],
        "type": reader.GetComponentTypeAsString(reader.GetComponentType()),
    }


def differing(found, expected):
    return [name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name)]


def round_trip(folder, some_kinds):
    """Write a changed mask by a store for each kind of file; yield the kind, voxels off, and header fields off."""
    cases = []
    for number, kind in enumerate(some_kinds):
        path = folder / f"{number}{kind.file_format}"
        write_source(kind, path, number)
        cases.append({"id": str(number), "image": str(path), "label": str(path)})
    store = LabelStore(folder / "store", cases)
    masks = [mask_of(kind.shape, 1000 + number) for number, kind in enumerate(some_kinds)]
    with store.write_round(1, {}) as writer:
        for case, mask in zip(cases, masks, strict=True):
            spatial = store.read(case["id"]).shape[1:]  # LoadImage drops a last axis of one volume
            writer.write(case["id"], mask.reshape(1, *spatial))
    for kind, mask, source, case in zip(some_kinds, masks, cases, store.datalist(), strict=True):
        written, given = Path(case["label"]), Path(source["label"])
        expected = nib.affines.apply_affine(kind.affine, np.argwhere(mask)[:, :3])
        fields = []
        if kind.file_format in NIFTI:
            image_class, _ = NIFTI[kind.file_format]
            fields += differing(nifti_parts(written, image_class), nifti_parts(given, image_class))
            where = nibabel_points(given, mask) if kind.form in ("qform", "neither") else expected
            off = points_off(nibabel_points(written), where)
        else:
            fields += differing(text_parts(written), text_parts(given))
            off = 0
        off += points_off(monai_points(written), monai_points(given, mask))
        read = itk_parts(given)
        if read is not None:
            off += points_off(itk_points(written), itk_points(given, mask))
            fields += differing(itk_parts(written), read)
        if kind.form == "both":
            off += points_off(monai_points(written), expected)
        yield kind, off, sorted(set(fields))


@pytest.mark.parametrize("orientation", AXES)
@pytest.mark.parametrize("file_format", FORMATS)
def test_every_voxel_and_header_field_comes_back(tmp_path, file_format, orientation):
    for kind, off, fields in round_trip(tmp_path, kinds(file_format, orientation)):
        assert (off, fields) == (0, []), kind


@pytest.mark.parametrize("detached", [False, True], ids=["as-text", "in-another-file"])
def test_voxels_that_the_header_does_not_precede_are_written_by_itk(tmp_path, detached):
    mask = mask_of((4, 3, 2), 0)
    voxels = " ".join(map(str, mask.astype(int).ravel("F")))
    header = "NRRD0005\ntype: short\ndimension: 3\nsizes: 4 3 2\nspacings: 0.5 2 3\nencoding: ascii\n"
    given, written = tmp_path / "given.nrrd", tmp_path / "written.nrrd"
    given.write_text(header + ("data file: voxels.txt\n" if detached else "\n" + voxels))
    (tmp_path / "voxels.txt").write_text(voxels)
    write_label_like(~mask, written, given)
    image = itk.imread(str(written))
    np.testing.assert_array_equal(itk.array_from_image(image).T, 1 - mask.astype(np.int16))
    assert (list(image.GetSpacing()), itk.array_view_from_image(image).dtype) == ([0.5, 2, 3], np.int16)
    assert not (tmp_path / "written.txt").exists()


@pytest.mark.parametrize("suffix", [".nii", ".nii.gz", ".nrrd", ".mha"])
def test_corrected_label_opens_over_the_image_in_itk(tmp_path, suffix):
    shape, given = (9, 7, 5), mask_of((9, 7, 5), 0)
    image = itk.image_from_array(np.random.RandomState(1).rand(*shape).astype(np.float32).T.copy())
    image.SetDirection(itk.matrix_from_array(np.ascontiguousarray(AXES["oblique PIR"])))
    image.SetSpacing([0.7, 1.3, 2.5])
    image.SetOrigin([-31.7, 12.3, 101.9])
    label = itk.image_from_array(given.astype(np.uint8).T.copy())
    label.CopyInformation(image)
    files = {name: str(tmp_path / f"{name}{suffix}") for name in ("image", "label")}
    itk.imwrite(image, files["image"])
    itk.imwrite(label, files["label"])
    store = LabelStore(tmp_path / "store", [{"id": "a", **files}])
    corrected = mask_of(shape, 2)
    with store.write_round(1, {}) as writer:
        writer.write("a", corrected[None])

    below, above = itk.imread(files["image"]), itk.imread(store.datalist()[0]["label"])
    np.testing.assert_array_equal(itk.array_from_image(above).T, corrected)
    assert itk.size(above) == itk.size(below)
    assert list(above.GetSpacing()) == list(below.GetSpacing())
    assert list(above.GetOrigin()) == list(below.GetOrigin())
    np.testing.assert_array_equal(*(itk.array_from_matrix(read.GetDirection()) for read in (above, below)))
    for index in np.argwhere(corrected).tolist():
        point = above.TransformIndexToPhysicalPoint(index)
        assert list(below.TransformPhysicalPointToIndex(point)) == index
        np.testing.assert_allclose(point, image.TransformIndexToPhysicalPoint(index), atol=1e-4)
