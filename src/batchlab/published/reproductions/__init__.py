"""Published results simulated: one module a source, one function a record."""

import importlib

from batchlab.published.record import Record
from batchlab.published.result import Reproduction, Tell


def reproduce(record: Record, tell: Tell = lambda doing: None) -> Reproduction:
    """Simulate a record that has a reproduction; tell hears what is being run. Raises ValueError for one without."""
    if record.reproduction is None:
        raise ValueError(f"{record.name}: {record.not_reproduced}")
    module, _, function = record.reproduction.partition(":")
    found: Reproduction = getattr(importlib.import_module(f"{__name__}.{module}"), function)(record, tell)
    return found
