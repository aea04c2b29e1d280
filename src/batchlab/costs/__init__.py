"""Cost models by name."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from batchlab.costs.base import CostModel
from batchlab.errors import InputError, nearest
from batchlab.files import read_toml
from batchlab.settings import construct

MODELS = {
    "distserve": "DistServe",
    "linear": "Linear",
    "operators": "Operators",
    "roofline": "Roofline",
    "table": "Table",
    "unit": "Unit",
}
"""Name, which is that of the file, and class. Imported when asked for: some need numpy, which takes time to import."""


def build(settings: Mapping[str, Any], folder: Path = Path()) -> CostModel:
    """The cost model of a [cost] section, whose relative paths count from `folder`.

    `from = "FILE"` takes the [cost] section of another file. Raises InputError; one about the section has no file.
    """
    own = dict(settings)
    if "from" in own:
        return _from_file(own, folder)
    model_class = find(own.pop("model", None))
    inputs = []
    for key, ending in getattr(model_class, "files", {}).items():
        if own.get(key) == "":
            raise InputError(None, f"cost.{key}", "", "must not be empty")
        if isinstance(own.get(key), str) and own[key].endswith(ending):
            own[key] = str(folder / own[key])
            inputs.append(own[key])
    model: Any = construct(model_class, own, "cost")
    model.inputs = tuple(inputs)
    return cast(CostModel, model)


def find(name: Any) -> type[Any]:
    """The class of a cost model. Raises InputError for what is no name of one."""
    if not isinstance(name, str) or name not in MODELS:
        hint = nearest(name, MODELS) if isinstance(name, str) else ""
        raise InputError(None, "cost.model", name, f"must be one of {', '.join(sorted(MODELS))}{hint}")
    return cast(type[Any], getattr(importlib.import_module(f"batchlab.costs.{name}"), MODELS[name]))


def load(path: Path) -> CostModel:
    """The cost model of a file with a [cost] section; relative paths count from its folder. Raises InputError."""
    document, _ = read_toml(path)
    section = document.get("cost")
    if not isinstance(section, dict):
        raise InputError(path, "cost", None, "is missing: a section [cost] with model = '...'")
    if "from" in section:
        raise InputError(path, "cost.from", section["from"], "must not name a third file")
    try:
        model: Any = build(section, path.parent)
        model.inputs = (*model.inputs, str(path))
        return cast(CostModel, model)
    except InputError as error:
        error.file = error.file or str(path)
        raise


def _from_file(own: dict[str, Any], folder: Path) -> CostModel:
    path = own.pop("from")
    if not isinstance(path, str) or own:
        expected = "must be the only key, and name a file with a [cost] section"
        raise InputError(None, "cost.from", path, expected)
    return load(folder / path)
