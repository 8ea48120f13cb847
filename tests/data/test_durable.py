import os
import signal

import pytest

from monai_sc.data.durable import claim_folder, release_folder, replace_synced, sha256

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
    with pytest.raises(OSError, match=r"absent/\.lock could not be written: No such file or directory\."):
        claim_folder(tmp_path / "absent")


def test_checksum_is_that_of_the_standard(tmp_path):
    (tmp_path / "file").write_bytes(b"abc")
    assert sha256(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"


def test_file_that_cannot_be_replaced_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "file").mkdir()
    with pytest.raises(OSError, match=r"file could not be written: Is a directory\."):
        replace_synced(tmp_path / "file", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
