"""The published results, one module a source."""

from batchlab.published.record import Record
from batchlab.published.records import anyscale, orca, sarathi, simulators, vllm

RECORDS: dict[str, Record] = {
    record.name: record
    for module in (orca, anyscale, vllm, sarathi, simulators)
    for record in module.RECORDS
}
