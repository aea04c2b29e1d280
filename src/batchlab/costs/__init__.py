"""Cost models by name."""

from collections.abc import Mapping
from typing import Any

from batchlab.costs.base import CostModel
from batchlab.costs.linear import Linear
from batchlab.costs.unit import Unit
from batchlab.errors import InputError, nearest
from batchlab.settings import construct

MODELS: dict[str, type] = {"linear": Linear, "unit": Unit}


def build(settings: Mapping[str, Any]) -> CostModel:
    """The cost model of a [cost] section. Raises InputError, without a file."""
    own = dict(settings)
    name = own.pop("model", None)
    if name not in MODELS:
        hint = nearest(name, MODELS) if isinstance(name, str) else ""
        raise InputError(None, "cost.model", name, f"must be one of {', '.join(sorted(MODELS))}{hint}")
    model: CostModel = construct(MODELS[name], own, "cost")
    return model
