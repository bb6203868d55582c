"""Migrations form one line, each can be undone, and they are found beside the code."""

from __future__ import annotations

from alembic.config import Config
from alembic.script import ScriptDirectory

from app.store import migrate


def _scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(migrate.scripts_path()))
    return ScriptDirectory.from_config(config)


def test_there_is_one_line_from_base_to_head() -> None:
    scripts = _scripts()
    assert scripts.get_heads() == [migrate.head()]
    revisions = [script.revision for script in scripts.walk_revisions()][::-1]
    assert revisions == sorted(revisions)
    assert revisions[0] == "0001"


def test_every_migration_goes_both_ways_and_is_named_after_its_revision() -> None:
    for script in _scripts().walk_revisions():
        assert callable(script.module.upgrade)
        assert callable(script.module.downgrade)
        assert script.path.rpartition("/")[2].startswith(f"{script.revision}_")
        assert script.doc
