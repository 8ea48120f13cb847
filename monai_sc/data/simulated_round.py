"""Round 0 of a label store made noisy, once."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from monai.transforms import Randomizable, Transform
from rich.progress import track

from monai_sc.functional import case_seed
from monai_sc.parallel import fail_together, is_main, rank, world_size

if TYPE_CHECKING:
    from monai_sc.data.label_store import LabelStore


def simulate_round(store: LabelStore, noise: Transform | None, *, seed: int, progress: bool) -> None:
    """Write round 0 of a store, as :py:meth:`LabelStore.simulate <monai_sc.data.LabelStore.simulate>` says."""
    draw: Any = noise
    if noise is not None and not isinstance(noise, Randomizable):
        raise TypeError(f"noise must be a Randomizable array transform or None, got {type(noise).__name__}.")
    with fail_together():
        told = store.record(0).get("noise") if store.is_simulated else None
        described = None if noise is None else {**describe(noise), "seed": seed}
        if told == described:
            return
        if store.is_simulated or store.rounds != [0]:
            raise ValueError(
                f"{store.root} holds labels that were made with the noise {told}, and {described} was asked for; "
                "choose another folder for this run."
            )
        own = store.cases[rank() :: world_size()]
        with store.write_round(0, {"noise": described}) as writer:
            for case in track(own, "Simulating label noise", disable=not (progress and is_main())):
                draw.set_random_state(seed=case_seed(seed, str(case["id"])) % 2**32)
                given = store.read(str(case["id"]), 0)
                writer.write(str(case["id"]), np.asarray(draw(given.astype(np.uint8))) > 0)


def describe(transform: Transform) -> dict[str, Any]:
    """Return the class and the settings of a transform, as JSON types, without the state of its draws."""
    settings = {k: v for k, v in vars(transform).items() if k not in ("R", "seed", "_do_transform")}
    described: dict[str, Any] = json.loads(json.dumps({"name": type(transform).__name__, **settings}))
    return described
