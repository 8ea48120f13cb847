"""Losses that label noise harms less than cross-entropy."""
