import errno
import fcntl
import hashlib
import os
import signal

import pytest

from monai_sc.files.durable import (
    claim_folder,
    naming,
    partial_of,
    release_folder,
    replace_synced,
    replacing,
    sha256,
    sync_file,
    sync_folder,
    write_synced,
)

# Python 3.12 warns of threads; the children here use none of their parent's.
pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


def claim_elsewhere(folder):
    """Say whether another process can claim the folder."""
    pid = os.fork()
    if pid == 0:
        try:
            claim_folder(folder)
        except ValueError:
            os._exit(1)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def next_descriptor():
    """Return the number that the next file to be opened gets, by which one that was left open is noticed."""
    descriptor = os.open(os.devnull, os.O_RDONLY)
    os.close(descriptor)
    return descriptor


def test_folder_is_claimed_by_one_process_until_it_is_released_as_often(tmp_path):
    assert claim_elsewhere(tmp_path)  # and gives it up, since it ends
    claim_folder(tmp_path)
    claim_folder(tmp_path / "." / "")
    assert not claim_elsewhere(tmp_path)
    release_folder(tmp_path)
    assert not claim_elsewhere(tmp_path)
    release_folder(tmp_path)
    assert claim_elsewhere(tmp_path)
    release_folder(tmp_path)  # nothing is left to release
    claim_folder(tmp_path)
    assert not claim_elsewhere(tmp_path)
    release_folder(tmp_path)


def test_other_process_is_named_as_the_reason(tmp_path):
    told, tells = os.pipe()
    pid = os.fork()
    if pid == 0:
        claim_folder(tmp_path)
        os.write(tells, b"claimed")
        signal.pause()
    try:
        os.read(told, 7)
        with pytest.raises(ValueError, match=r"Another process writes into .* right now; wait for it, or stop it\."):
            claim_folder(tmp_path)
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    claim_folder(tmp_path)
    release_folder(tmp_path)


def test_folder_that_cannot_be_written_to_cannot_be_claimed(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match=r"file/\.lock could not be written: (Not a directory|File exists)\."):
        claim_folder(tmp_path / "file")


def test_checksum_is_that_of_the_standard(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match=r"file could not be written: Is a directory\."):
        replace_synced(tmp_path / "file", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_folder_on_a_disk_without_locks_is_claimed_all_the_same(tmp_path, monkeypatch, code):
    def refuse(*_):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    for _ in range(2):
        claim_folder(tmp_path)
        release_folder(tmp_path)


def test_released_folder_leaves_no_file_open(tmp_path):
    before = next_descriptor()
    claim_folder(tmp_path)
    claim_folder(tmp_path)
    assert next_descriptor() != before
    release_folder(tmp_path)
    release_folder(tmp_path)
    assert next_descriptor() == before


@pytest.fixture
def flushed(monkeypatch):
    """Return what has been flushed to the disk: inodes, and what size a file had then."""
    sizes, fsync = {}, os.fsync

    def note(descriptor):
        sizes[os.fstat(descriptor).st_ino] = os.fstat(descriptor).st_size
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", note)
    return sizes


@pytest.mark.parametrize("write", [write_synced, replace_synced])
def test_what_was_written_is_on_the_disk(tmp_path, flushed, write):
    file = tmp_path / "file"
    file.write_text("before, and longer")
    write(file, "ä text")
    assert file.read_bytes() == "ä text".encode()
    assert flushed[file.stat().st_ino] == 7
    assert (tmp_path.stat().st_ino in flushed) == (write is replace_synced)  # a new name is in the list of the folder
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_files_and_folders_are_flushed(tmp_path, flushed):
    (tmp_path / "file").write_bytes(b"abc")
    sync_file(tmp_path / "file")
    assert flushed == {(tmp_path / "file").stat().st_ino: 3}
    before = next_descriptor()
    sync_folder(tmp_path)
    assert tmp_path.stat().st_ino in flushed
    assert next_descriptor() == before


@pytest.mark.parametrize("write", [write_synced, replace_synced])
def test_link_is_replaced_and_what_it_leads_to_stays(tmp_path, write):
    (tmp_path / "target").write_text("precious")
    for name in ("file", ".file.partial"):
        (tmp_path / name).symlink_to(tmp_path / "target")
    write(tmp_path / "file", "text")
    assert not (tmp_path / "file").is_symlink()
    assert (tmp_path / "file").read_text() == "text"
    assert (tmp_path / "target").read_text() == "precious"


def test_file_takes_its_place_when_it_is_whole(tmp_path):
    (tmp_path / "file").write_text("before")
    with replacing(tmp_path / "file") as partial:
        assert partial == partial_of(tmp_path / "file") == tmp_path / ".file.partial"
        partial.write_text("after")
        assert (tmp_path / "file").read_text() == "before"
    assert (tmp_path / "file").read_text() == "after"

    def fail():
        with replacing(tmp_path / "file") as partial:
            partial.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert (tmp_path / "file").read_text() == "after"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (OSError(28, "No space left on device"), "No space left on device"),
        (OSError("the disk is gone"), "the disk is gone"),
    ],
)
def test_file_that_could_not_be_written_is_named(error, reason):
    with pytest.raises(OSError, match=rf"^x could not be written: {reason}\.$") as caught, naming("x"):
        raise error
    assert caught.value.__cause__ is error


def test_checksum_of_a_large_file_is_that_of_all_its_blocks(tmp_path):
    content = os.urandom(3_000_000)
    (tmp_path / "file").write_bytes(content)
    assert sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()
