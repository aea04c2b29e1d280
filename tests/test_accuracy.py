"""docs/accuracy.md says what its script finds. The whole page takes half a minute; its main table is made anew here."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
MEASURED = ROOT.parent / "shared" / "measured"


@pytest.fixture(scope="module")
def accuracy() -> ModuleType:
    spec = importlib.util.spec_from_file_location("accuracy", ROOT / "docs" / "accuracy.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.skipif(not MEASURED.is_dir(), reason="the measurements are not here")
def test_the_main_tables_are_what_the_script_makes(accuracy: ModuleType) -> None:
    page = (ROOT / "docs" / "accuracy.md").read_text(encoding="utf-8")
    found = accuracy.forms(MEASURED)
    assert len(found) == 4
    assert accuracy.main_table(found | accuracy.trials(MEASURED)) in page
    for (_, form), one in found.items():
        assert (accuracy.full_table(one) in page) == accuracy.FORMS[form]
