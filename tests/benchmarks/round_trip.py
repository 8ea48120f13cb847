"""What a label loses on its way through a store: a table of file formats, orientations and data types."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections import defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))
from test_round_trip import AXES, FORMATS, kinds, round_trip


def main():
    """Print the table as Markdown: files, voxels off, and header fields off."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--all", action="store_true", help="every data type with every form of a NIfTI header")
    product = parser.parse_args().all
    print("| format | orientation | data types | files | voxels off | header fields off |\n|---|---|---|---|---|---|")
    for file_format in FORMATS:
        for orientation in AXES:
            some, off, fields = kinds(file_format, orientation, product=product), 0, defaultdict(int)
            with tempfile.TemporaryDirectory() as folder:
                for _, voxels, names in round_trip(Path(folder), some):
                    off += voxels
                    for name in names:
                        fields[name] += 1
            told = ", ".join(f"{name} ({number})" for name, number in fields.items()) or 0
            types = len({kind.dtype for kind in some})
            print(f"| {file_format} | {orientation} | {types} | {len(some)} | {off} | {told} |", flush=True)


if __name__ == "__main__":
    main()
