"""What is imported for good is left to itself by the garbage collector, which goes on elsewhere."""

import gc
import subprocess
import sys

import pytest

from pytest_behaviortrace.run.importing import imported


def test_what_is_imported_is_no_garbage_collectors_business():
    # Asked for again, it is there, and what was made since is collected like everything else.
    program = (
        "import gc; from pytest_behaviortrace.run.importing import imported; before = gc.get_freeze_count(); "
        "made = imported('email.mime.text'); "
        "assert made.__name__ == 'email.mime.text'; assert gc.isenabled(); assert gc.get_freeze_count() > before; "
        "assert not any(one is made.MIMEText.__dict__ for one in gc.get_objects()); "
        "kept = gc.get_freeze_count(); lost = [[] for _ in range(9999)]; assert imported('email.mime.text') is made; "
        "assert gc.get_freeze_count() <= kept"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("on", [True, False])
def test_the_collector_is_on_afterwards_if_it_was_before_whatever_the_import_does(on, monkeypatch):
    monkeypatch.setattr(gc, "freeze", lambda: None)
    was = gc.isenabled()
    try:
        (gc.enable if on else gc.disable)()
        with pytest.raises(ModuleNotFoundError, match="no_such_module"):
            imported("no_such_module")
        assert gc.isenabled() == on
    finally:
        (gc.enable if was else gc.disable)()
