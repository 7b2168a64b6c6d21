"""How often the checks pass what is worthless and what is not: synthetic problems through the real checks."""
