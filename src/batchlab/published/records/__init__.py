"""The published results, one module a source."""

from batchlab.errors import InputError, nearest
from batchlab.published.record import Record
from batchlab.published.records import anyscale, orca, sarathi, simulators, vllm

RECORDS: dict[str, Record] = {
    record.name: record for module in (orca, anyscale, vllm, sarathi, simulators) for record in module.RECORDS
}


def find(name: str) -> Record:
    """The record of this name. Raises InputError with the nearest one."""
    if name not in RECORDS:
        expected = f"no such result{nearest(name, RECORDS)}; `batchlab published` lists them"
        raise InputError("published", None, name, expected)
    return RECORDS[name]
