"""Cost models by name."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from batchlab.costs.base import CostModel
from batchlab.costs.linear import Linear
from batchlab.costs.roofline import Roofline
from batchlab.costs.unit import Unit
from batchlab.errors import InputError, nearest
from batchlab.settings import construct

MODELS: dict[str, type] = {"linear": Linear, "roofline": Roofline, "unit": Unit}


def build(settings: Mapping[str, Any], folder: Path = Path()) -> CostModel:
    """The cost model of a [cost] section; it finds its files from `folder`. Raises InputError, without a file."""
    own = dict(settings)
    name = own.pop("model", None)
    if name not in MODELS:
        hint = nearest(name, MODELS) if isinstance(name, str) else ""
        raise InputError(None, "cost.model", name, f"must be one of {', '.join(sorted(MODELS))}{hint}")
    for key in getattr(MODELS[name], "files", ()):
        if isinstance(own.get(key), str) and own[key].endswith(".json"):
            own[key] = str(folder / own[key])
    model: CostModel = construct(MODELS[name], own, "cost")
    return model
