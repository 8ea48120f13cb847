"""The commands of ``python -m monai_sc``, a module each: what each is told, and what it prints."""

from __future__ import annotations
