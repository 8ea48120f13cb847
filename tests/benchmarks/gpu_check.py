"""Checks of the Markov label noise of a batch that need a GPU, and its throughput beside the function for one label.

``python tests/benchmarks/gpu_check.py [--out FILE.json]`` on a machine with a GPU; it takes a few minutes. With
``--device cpu`` it runs small sizes, to be tried without one. The exit status is 1 if a check fails or there is no GPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy import stats

from monai_sc.functional import markov_label_noise
from monai_sc.functional.dense_noise import markov_label_noise_batch

SMALLEST_P_VALUE = 0.001
WARM_UP_SEED = 10**9
# Name, size, radius of the ball, parameters, labels whose distribution is compared, sizes of batches.
CASES = {
    "cuda": [
        ("2D", (256, 256), 60, {"num_steps": 180, "expansion_prob": 0.8, "march_prob": 0.05}, 1024, 256),
        ("3D", (64, 128, 128), 25, {"num_steps": 80, "expansion_prob": 0.7, "march_prob": 0.05}, 512, 32),
    ],
    "cpu": [
        ("2D", (64, 64), 15, {"num_steps": 40, "expansion_prob": 0.8, "march_prob": 0.05}, 256, 16),
        ("3D", (20, 32, 32), 7, {"num_steps": 20, "expansion_prob": 0.7, "march_prob": 0.05}, 128, 4),
    ],
}
OPTIONS = [
    {},
    {"flip_prob": 0.02, "smoothing": "before_flips"},
    {"flip_prob": 0.1, "smoothing": "after_flips", "smooth_sigma": 2.0, "smooth_radius": 2},
    {"spacing": (3.0, 1.0, 1.0)},
    {"in_plane": True, "spacing": (3.0, 1.0, 1.0), "slice_correlation": 0.5},
]


def ball(size, radius):
    """Return a mask ``(1, *size)`` of a ball in the middle."""
    grid = np.stack(np.meshgrid(*(np.arange(n) - n / 2 for n in size), indexing="ij"))
    return (np.linalg.norm(grid, axis=0) < radius)[None]


def areas_and_dice(masks, clean):
    """Return the area and the Dice of each of the masks ``(n, 1, *size)``."""
    masks, clean = masks.reshape(len(masks), -1), clean.reshape(-1)
    areas = masks.sum(axis=1)
    return areas, 2 * (masks & clean).sum(axis=1) / (areas + clean.sum())


def batch_of(clean, size, device):
    """Return the clean label ``size`` times, on the device."""
    return torch.from_numpy(clean).to(device).expand(size, *clean.shape).contiguous()


def check_distribution(clean, parameters, runs, batch_size, device):
    """Compare areas and Dice of ``runs`` labels from the device and as many from the function for one label."""
    found = []
    for first in range(0, runs, batch_size):
        batch = batch_of(clean, batch_size, device)
        masks = markov_label_noise_batch(batch, seeds=range(first, first + batch_size), **parameters)
        found.append(areas_and_dice(masks.cpu().numpy(), clean))
    # Other seeds: from equal ones both draw in the same way whether a step expands.
    others = [areas_and_dice(markov_label_noise(clean, **parameters, seed=runs + s)[None], clean) for s in range(runs)]
    results = {}
    for k, name in enumerate(("area", "Dice")):
        ours, theirs = (np.concatenate([pair[k] for pair in pairs]) for pairs in (found, others))
        test = stats.ks_2samp(ours, theirs, method="asymp")
        results[name] = {
            "mean": float(ours.mean()),
            "mean_other": float(theirs.mean()),
            "ks": float(test.statistic),
            "p_value": float(test.pvalue),
            "passed": bool(test.pvalue > SMALLEST_P_VALUE),
        }
    return results


def check_bytes(device):
    """Return for each set of options whether the bytes on the device are those on the CPU."""
    rng = np.random.default_rng(0)
    volumes = np.stack([ball((18, 40, 44), r)[0] | (rng.random((18, 40, 44)) < 0.01) for r in (5, 8, 12, 30)])
    batch = torch.from_numpy(volumes.reshape(2, 2, 18, 40, 44))
    parameters = {"num_steps": (25, 33), "expansion_prob": 0.6, "march_prob": (0.2, 0.5), "seeds": [4, 2**50]}
    results = []
    for options in OPTIONS:
        ours = markov_label_noise_batch(batch.to(device), **parameters, **options).cpu()
        results.append(bool(torch.equal(ours, markov_label_noise_batch(batch, **parameters, **options))))
    return results


def seconds(function, device):
    """Return how long one call takes, until the device is done; the best of three, after one to warm up."""
    times = []
    for turn in range(4):
        start = time.perf_counter()
        function(WARM_UP_SEED + turn)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])


def throughput(clean, parameters, largest, device):
    """Return for each size of a batch how many labels per second, and the most memory of the GPU in MiB."""
    results = []
    size = 1
    while size <= largest:
        batch = batch_of(clean, size, device)
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)

        def noise(seed, batch=batch, size=size):
            markov_label_noise_batch(batch, seeds=range(seed * size, (seed + 1) * size), **parameters)

        taken = seconds(noise, device)
        memory = torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else None
        results.append({"batch": size, "labels_per_second": size / taken, "peak_mib": memory})
        size *= 2
    return results


def one_label_throughput(clean, parameters, calls=20):
    """Return how many labels per second the function for one label makes, on one thread of the CPU."""
    markov_label_noise(clean, **parameters, seed=WARM_UP_SEED)
    start = time.perf_counter()
    for seed in range(calls):
        markov_label_noise(clean, **parameters, seed=seed)
    return calls / (time.perf_counter() - start)


def main():
    """Run the checks, print the tables, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--out", type=Path, help="JSON file for the results")
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("There is no GPU here; --device cpu runs small sizes without one.", file=sys.stderr)
        return 1
    device = torch.device(arguments.device)
    console = Console(width=None if Console().is_terminal else 120)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
    report = {"device": name, "torch": torch.__version__, "cases": {}}

    report["same_bytes_as_on_cpu"] = check_bytes(device)
    passed = all(report["same_bytes_as_on_cpu"])
    console.print(
        f"{name}: the same bytes as on the CPU for {len(OPTIONS)} sets of options: {'yes' if passed else 'NO'}"
    )

    laws = Table(
        "", "", "mean", "mean, one label", "KS", "p", "", title="Distribution beside the function for one label"
    )
    speeds = Table("", "batch", "labels/s", "times one label", "peak MiB", title=f"Throughput, {name}")
    for case, size, radius, parameters, runs, largest in CASES[device.type]:
        clean = ball(size, radius)
        law = check_distribution(clean, parameters, runs, largest, device)
        one, batches = one_label_throughput(clean, parameters), throughput(clean, parameters, largest, device)
        report["cases"][case] = {
            "size": size,
            "parameters": parameters,
            "labels": runs,
            "distribution": law,
            "one_label_per_second": one,
            "batches": batches,
        }
        for what, found in law.items():
            passed = passed and found["passed"]
            means = f"{found['mean']:.4g}", f"{found['mean_other']:.4g}"
            verdict = "passed" if found["passed"] else "FAILED"
            laws.add_row(f"{case} {size}", what, *means, f"{found['ks']:.3f}", f"{found['p_value']:.3f}", verdict)
        speeds.add_row(f"{case} {size}", "one label, CPU", f"{one:.1f}", "1", "")
        for row in batches:
            memory = "" if row["peak_mib"] is None else f"{row['peak_mib']:.0f}"
            speed = row["labels_per_second"]
            speeds.add_row("", str(row["batch"]), f"{speed:.1f}", f"{speed / one:.2f}", memory)
    console.print(laws)
    console.print(speeds)
    report["passed"] = passed
    if arguments.out:
        arguments.out.write_text(json.dumps(report, indent=2) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
