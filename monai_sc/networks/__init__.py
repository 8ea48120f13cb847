"""How a network starts."""

from __future__ import annotations

from monai_sc.networks.start import start_at_prior

__all__ = ["start_at_prior"]
