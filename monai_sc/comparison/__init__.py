"""The compared methods side by side: one training for each, and what came of them."""

from monai_sc.comparison.result import write_result

__all__ = ["write_result"]
