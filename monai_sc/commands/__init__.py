"""The commands of ``python -m monai_sc``, a module each: what it is told, and what it prints."""
