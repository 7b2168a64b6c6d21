"""Cheats, one a file: what it does, what it is caught by, and why; `tests/meta/test_cheats.py` holds each to that.

`CAUGHT_BY` is the name of a check that no row of the cheat passes, or one of

* `construction`: what it exploits is not there;
* `error`: its row is an error, never a verdict;
* `isolation`: it wins in the session's own process, and loses under --bt-isolate;
* `out of scope`: it wins under --bt-isolate too.
"""
