"""The suite version: raised by any change of a check, a threshold or a recipe, and printed with every verdict."""

SUITE = "2026.12.2"
