"""The estimators, controls and surface heuristics that ship; registered through entry points like anybody else's."""
