"""The published results, one module a source."""

from batchlab.errors import InputError, nearest
from batchlab.published.record import Record
from batchlab.published.records import anyscale, orca, sarathi, simulators, vllm

RECORDS: dict[str, Record] = {
    record.name: record for module in (orca, anyscale, vllm, sarathi, simulators) for record in module.RECORDS
}


def find(name: str) -> Record:
    """The record of this name. Raises InputError with those that begin so, the nearest one, or all that there are."""
    if name not in RECORDS:
        begin = [repr(known) for known in RECORDS if name and known.startswith(name.lower())]
        like = f" (did you mean {' or '.join(begin)}?)" if begin else nearest(name.lower(), RECORDS)
        there = "`batchlab published` lists them" if like else f"there are {', '.join(RECORDS)}"
        raise InputError("published", None, name, f"no such result{like}; {there}")
    return RECORDS[name]
