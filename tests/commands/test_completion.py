import shutil
import subprocess

import pytest

from monai_sc import __main__ as command_line

COMPLETE = """
source "$1"
shift
COMP_WORDS=("$@")
COMP_CWORD=$(($# - 1))
[[ $(complete -p monai-sc) =~ -F\\ ([^ ]+) ]]
"${BASH_REMATCH[1]}" monai-sc "${@: -1}" "${@: -2:1}"
printf '%s\\n' "${COMPREPLY[@]}"
"""

WORDS = [
    pytest.param(["comp"], {"compare", "completion"}, id="command"),
    pytest.param(["audit", "--cl"], {"--clean"}, id="option"),
    pytest.param(["correct", "--kind", ""], {"logits", "probabilities"}, id="value"),
    pytest.param(["prepare", "is"], {"isic2017"}, id="positional"),
    pytest.param(["ablate", "noise-level", "--prot"], {"--protocol"}, id="ablation"),
    pytest.param(["restore", "fo"], {"folder"}, id="folder"),
    pytest.param(["audit", "--labels", "f"], {"folder"}, id="folder-of-an-option"),
]


def script_of(shell, capsys):
    assert command_line.main(["completion", shell]) == 0
    told, noted = capsys.readouterr()
    assert noted == ""
    return told


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
@pytest.mark.parametrize(("words", "expected"), WORDS)
def test_bash_completes(tmp_path, capsys, words, expected):
    (tmp_path / "completion.bash").write_text(script_of("bash", capsys))
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    command = ["bash", "-c", COMPLETE, "bash", "completion.bash", "monai-sc", *words]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, encoding="utf-8", timeout=60, check=False
    )
    assert done.stderr == ""
    assert {line.strip().rstrip("/") for line in done.stdout.splitlines()} == expected


def test_other_shells_have_scripts_too(capsys):
    assert script_of("zsh", capsys).startswith("#compdef monai-sc\n")
    assert "complete monai-sc" in script_of("tcsh", capsys)
