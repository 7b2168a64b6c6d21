"""Builds the two kinds of unit: a seed (planted and null run, recorded) and a draw (fresh siblings of a seed)."""

from __future__ import annotations
