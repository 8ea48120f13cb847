"""The comparison of all methods on JSRT at 256 x 256, as one command for one GPU and 15 minutes.

``python tests/benchmarks/gpu_comparison.py --source JSRT_PNG --out OUT`` prepares the data set and runs three kinds of
noise, ten methods and one seed: 20 epochs of pre-training on the clean cases, 20 of training (60 for CLE, up to 60 for
SC), which is shorter than in the paper. Eight trainings share the GPU. It stops after ``--minutes``; the same command
goes on. ``--toy`` runs everything at toy size on generated images, to be tried without a GPU.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path

import torch

BUNDLE = Path(__file__).parents[2] / "bundles" / "jsrt"
FULL = {"epochs_per_round": 20, "max_rounds": 2}
TOY = {"epochs_per_round": 1, "max_rounds": 1, "image_size": "[32,32]"}
NOISES = "markov_expand,markov_shrink,dilate_erode"


def call(*arguments):
    """Run a command of the package."""
    subprocess.run([sys.executable, "-m", "monai_sc", *map(str, arguments)], check=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--source", help="the PNG files of JSRT; with --toy they are generated")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=13, help="when it stops, to be called again (13)")
    parser.add_argument("--methods", default="all")
    parser.add_argument("--noise", default=NOISES)
    parser.add_argument("--toy", action="store_true", help="toy size, on the CPU if there is no GPU")
    arguments = parser.parse_args()
    if not (torch.cuda.is_available() or arguments.toy):
        sys.exit("There is no GPU; --toy runs it at toy size without one.")
    if not (arguments.source or arguments.toy):
        parser.error("--source must be given without --toy.")
    data, source = arguments.out / "data", arguments.source
    if not data.exists():
        if source is None:
            source = arguments.out / "generated"
            call("stand-in", "jsrt", "--out", source)
        call("prepare", "jsrt", "--source", source, "--out", data, "--partial")
    values = (TOY if arguments.toy else FULL) | {"num_workers": 0}
    comparison = subprocess.Popen(
        [
            sys.executable, "-m", "monai_sc", "compare", "--bundle", BUNDLE, "--dataset-dir", data,
            "--out", arguments.out / "comparison", "--methods", arguments.methods, "--noise", arguments.noise,
            "--seeds", str(arguments.seeds), "--jobs", str(arguments.jobs),
            *(f"--set={name}={value}" for name, value in values.items()),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "2" if torch.cuda.is_available() else "1"},
    )  # fmt: skip
    try:
        status = comparison.wait(timeout=60 * arguments.minutes)
    except subprocess.TimeoutExpired:
        comparison.terminate()
        comparison.wait()
        sys.exit(f"Stopped after {arguments.minutes:g} minutes; the same command goes on.")
    sys.exit(status)


if __name__ == "__main__":
    main()
