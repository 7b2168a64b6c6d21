"""Every --bt-* flag and bt_* ini value, and whether any of them asks for grading. PYTEST_DONT_REWRITE

Imported in every run of pytest, so it stays small; `settings` reads and checks the values.
"""

from __future__ import annotations

import pytest

SEEDS, DRAWS, RECIPE = 3, 2, "tiny"
FAIL_ON = ("fail", "inconclusive", "regression")
EXPECTED_FAILURES = "bt_expected_failures"
CACHE_VARIABLE = "BEHAVIORTRACE_CACHE"
PLANTED_ONLY = ("bt_recipe", "bt_seeds", "bt_plant")
"""What says something about a planted run, and nothing about one of the user's own."""

FLAGS = (
    # flag, ini twin, metavar, help
    ("--bt-seeds", "bt_seeds", "N", f"train and grade seeds 0 to N-1 (default: {SEEDS}; at most 3,000)"),
    ("--bt-draws", "bt_draws", "N", f"sibling draws of each seed (default: {DRAWS}; at most 1,000)"),
    ("--bt-recipe", "bt_recipe", "NAME", f"recipe of the planted run, or a .toml file (default: {RECIPE})"),
    ("--bt-plant", "bt_plant", "NAME", "which of the recipe's two behaviours is graded (default: its first)"),
    ("--bt-run", "bt_run", "PATH", "grade on this run of your own, which record() wrote, not on the planted one"),
    ("--bt-behavior", "bt_behavior", "REGEX", "with --bt-run: the behaviour whose cause is sought in it"),
    ("--bt-cache-dir", "bt_cache_dir", "DIR", f"where runs are kept (default: ${CACHE_VARIABLE}, or the user cache)"),
    ("--bt-baseline", "bt_baseline", "OLD.json", "fail where a row got worse since this report (empty: none)"),
    ("--bt-fail-on", "bt_fail_on", "{fail,inconclusive,regression}", "what makes a row fail the run (default: fail)"),
    ("--bt-estimator-timeout", "bt_estimator_timeout", "SECONDS", "a slower estimator is an error (default: none)"),
)


def add(parser: pytest.Parser) -> None:
    """Declare every flag and ini value."""
    group = parser.getgroup("behaviortrace", "behaviortrace: grade attribution estimators on a planted GRPO run")
    group.addoption(
        "--bt-estimator", action="append", default=None, metavar="NAME",
        help="grade this estimator: a registered name, or package.module:name (repeatable). Without paths on the "
        "command line only the shipped checks run",
    )  # fmt: skip
    group.addoption(
        "--bt-report", action="append", default=None, metavar="PATH",
        help="write the scorecard to a file; the suffix picks: .json, .html, .md or .csv (repeatable)",
    )  # fmt: skip
    group.addoption("--bt-list", action="store_true", default=False, help="list estimators and checks, and exit")
    isolate = "call estimators in processes of their own, with files of their problem and nothing else"
    group.addoption("--bt-isolate", action="store_true", default=False, help=isolate)
    parser.addini("bt_isolate", isolate, "bool", default=False)
    parser.addini("bt_estimators", "estimators graded in every run, beside the project's own tests", "args", default=[])
    parser.addini(
        EXPECTED_FAILURES, "TOML file of failures that are expected, by estimator and check, each with its reason",
        default="",
    )  # fmt: skip
    for flag, ini, metavar, text in FLAGS:
        group.addoption(flag, default=None, metavar=metavar, help=text)
        if ini is not None:
            parser.addini(ini, f"{text}; {flag} beats it", default="")


def asked(config: pytest.Config) -> tuple[str, ...]:
    """The estimators to grade, each once; none: the plugin stays inactive."""
    names = config.getoption("bt_estimator") or config.getini("bt_estimators")
    return tuple(dict.fromkeys(str(name).strip() for name in names))


def typed(config: pytest.Config) -> list[str]:
    """The --bt-* flags of the command line itself (not of addopts), each as `--flag=value`."""
    found, args = [], [str(a) for a in config.invocation_params.args]
    for i, arg in enumerate(args):
        if not arg.startswith("--bt-"):
            continue
        joined = "=" in arg or arg in ("--bt-list", "--bt-isolate") or i + 1 == len(args)
        found.append(arg if joined else f"{arg}={args[i + 1]}")
    return found


def refuse_alone(config: pytest.Config) -> None:
    """Raise `pytest.UsageError` when something was asked for that means nothing without an estimator."""
    if config.getoption("bt_list"):
        return
    if flags := typed(config):
        flag = flags[0].partition("=")[0]
        raise pytest.UsageError(f"{flag} does nothing alone; name an estimator to grade with --bt-estimator=NAME")
    if any("checks" in arg for arg in config.args) and config.args_source is config.ArgsSource.ARGS:
        from pytest_behaviortrace.activation import refuse_checks

        refuse_checks(config)
