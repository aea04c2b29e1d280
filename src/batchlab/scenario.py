"""Scenario files: one TOML file says what decides, how time passes, who asks, and when to stop."""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from batchlab import costs, policies
from batchlab.clients.request import Request
from batchlab.clients.written import RequestTable, WorkloadTable
from batchlab.core.limits import Limits
from batchlab.costs.base import CostModel
from batchlab.errors import InputError, nearest
from batchlab.files import read_toml
from batchlab.metrics.objectives import parse_targets
from batchlab.order import QueueOrder
from batchlab.policies.base import Policy
from batchlab.settings import Count, LimitSettings, MemorySettings, Table, parameters, place, validate
from batchlab.simulation import Run

LIMITS = (*LimitSettings.model_fields, *MemorySettings.model_fields)
NAMED = {
    "workload.requests": ("id", "no request has the id"),
    "workload.generate.classes": ("name", "no class has the name"),
}
"""Lists of which --set names an entry: by which of its keys, and what is said where there is none."""
STEP_TOKENS = 8192
"""Tokens of a step that activations get memory for where the engine has no token budget: vLLM's own on a large GPU."""


class RunTable(Table):
    """[run]: when to stop, and what becomes of a request whose deadline has passed."""

    max_iterations: Count | None = None
    deadlines: Literal["keep", "drop"] = "keep"


class QueueTable(Table):
    """[queue]: who waits where, and who goes when it is full."""

    order: Literal["arrival", "priority"] = "arrival"
    aging: Count | None = None
    when_full: Literal["reject", "shed"] = "reject"


class ScenarioTable(Table):
    """The whole file. [engine] and [cost] are checked against what they name."""

    title: str = ""
    engine: dict[str, Any]
    cost: dict[str, Any]
    queue: QueueTable = QueueTable()
    run: RunTable = RunTable()
    workload: WorkloadTable


@dataclass(frozen=True)
class Scenario:
    """A checked scenario: one run for each policy it names, in order."""

    name: str
    title: str
    runs: list[Run]
    ignored: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Policy -> limits of the file that it does not know, where it was chosen instead of the file's."""
    path: str = ""
    overrides: Mapping[str, str] = field(default_factory=dict)
    """Dotted key of each override -> the place in the file that it took."""

    def locate(self, error: InputError) -> InputError:
        """An error about the document with the file's name, or the override's, before it."""
        if error.file is None:
            wrong = error.place or ""
            for key, at in self.overrides.items():
                if wrong == at or wrong.startswith((f"{at}.", f"{at}[")) or at.startswith(f"{wrong}."):
                    error.file = f"--set {key}{wrong[len(at) :]}"
                    error.place = None
                    return error
            error.file = self.path
        return error


def load(
    path: str | os.PathLike[str],
    overrides: Mapping[str, Any] | None = None,
    engines: Sequence[str] = (),
    workload: str | os.PathLike[str] | None = None,
    check: bool = True,
) -> Scenario:
    """Read a scenario file. Raises InputError.

    overrides: values by dotted key, such as {"engine.prefill_chunk": 2}. engines: policies instead of the file's.
    workload: a workload file instead of the scenario's, relative to the current folder. check: ask every policy at once
    whether it can run this; otherwise `simulate` asks.
    """
    document, data = read_toml(path)
    places = override(document, overrides or {})
    if workload is not None:
        _override(document, "workload.file", os.fspath(workload))
    name = os.fsencode(Path(path).name).decode("utf-8", "backslashreplace")  # it goes into traces
    try:
        source = {"name": name, "sha256": hashlib.sha256(data).hexdigest()}
        built = build(document, name, source, engines, Path(path).parent, None if workload is None else Path())
        for run in built.runs if check else ():
            run.check()
    except InputError as error:
        raise Scenario(name, "", [], {}, str(path), places).locate(error) from error.__cause__
    return replace(built, path=str(path), overrides=places)


def override(document: dict[str, Any], overrides: Mapping[str, Any]) -> dict[str, str]:
    """Set values in a document by dotted key. Returns each key's place, as errors name it. Raises InputError."""
    return {key: _override(document, key, value) for key, value in overrides.items()}


def cost_of(document: Mapping[str, Any], folder: Path) -> CostModel:
    """The cost model of a document's [cost]. Raises InputError."""
    section = document.get("cost", {})
    if not isinstance(section, dict):
        raise InputError(None, "cost", section, "must be a table of settings")
    return costs.build(section, folder)


def build(
    document: Mapping[str, Any],
    name: str = "scenario",
    source: Mapping[str, Any] | None = None,
    engines: Sequence[str] = (),
    folder: Path = Path(),
    workload_folder: Path | None = None,
    cost: CostModel | None = None,
) -> Scenario:
    """A scenario from a document of the file's shape; it finds its files from `folder`, or its workload from another.

    cost: instead of the document's. Raises InputError; one about the document comes without a file.
    """
    table: ScenarioTable = validate(ScenarioTable, dict(document))
    written_out = table.workload.written_out
    engine = dict(table.engine)
    named = _policy_names(engine.pop("policy", list(engines) or None))
    chosen = list(engines) or named
    if len(set(chosen)) < len(chosen):
        raise InputError(None, "engine.policy", chosen, "must name each policy once")
    _refuse_unknown_settings(engine, [policies.find(policy) for policy in {*named, *chosen}])
    requests: Sequence[Request]
    reacts = table.workload.reacts
    if written_out:
        requests = _written_out(table.workload.requests)
    else:
        clock_unit = (cost or costs.build(table.cost, folder)).unit
        _check_targets(table.workload, clock_unit)
        requests = columns = table.workload.columns_of(workload_folder or folder, clock_unit)
        reacts = reacts or columns.waits
        own = columns.source()
        source = own if "sha256" in own else {**(source or {}), **own}
    if None not in (table.workload.clients, table.workload.max_concurrency):
        expected = "a closed loop of N clients never has more than N under way: leave one of the two out"
        raise InputError(None, "workload.max_concurrency", table.workload.max_concurrency, expected)
    if table.workload.think_time and not table.workload.thinks:
        expected = "needs clients = N, a closed loop, or a session among the columns of a file"
        raise InputError(None, "workload.think_time", table.workload.think_time, expected)
    count = None if reacts else len(requests)  # clients that wait for results may not send all
    source = {"name": None, "sha256": None, **(source or {}), "requests": count}
    runs = [
        # a cost model for each run, since some count what they were asked
        _run(policy, engine, table, cost or costs.build(table.cost, folder), requests, source)
        for policy in chosen
    ]
    ignored = {
        p: [key for key in engine if key in LIMITS and key not in policies.settings_of(policies.find(p))]
        for p in engines
    }
    return Scenario(name, table.title, runs, {p: keys for p, keys in ignored.items() if keys})


def _check_targets(table: WorkloadTable, unit: str) -> None:
    """What the classes are held to has to be targets. Raises InputError."""
    generate = table.generate
    for number, kind in enumerate(() if generate is None else generate.kinds):
        try:
            if kind.goodput is not None:
                parse_targets((kind.goodput,), unit)
        except InputError as error:
            own = "" if generate is None or generate.classes is None else f".classes[{number}]"
            raise InputError(None, f"workload.generate{own}.goodput", error.value, error.expected) from None


def _written_out(entries: Sequence[RequestTable]) -> list[Request]:
    segments: dict[str, int] = {}
    requests = [entry.request(position, segments) for position, entry in enumerate(entries)]
    _refuse_duplicates(requests)
    return requests


def _policy_names(chosen: Any) -> list[str]:
    names = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        known = ", ".join(policies.names())
        raise InputError(None, "engine.policy", chosen, f"must name a policy, or a list of them: {known}")
    return names


def _run(
    name: str,
    engine: Mapping[str, Any],
    table: ScenarioTable,
    cost: CostModel,
    requests: Sequence[Request],
    source: dict[str, Any],
) -> Run:
    """The run of one policy, with those of the engine's settings that it and the core take."""
    policy_class = policies.find(name)
    own = {key: value for key, value in engine.items() if key in parameters(policy_class)}
    policy = policies.make(name, own, "engine")
    settings = {key: _as_json(getattr(policy, key, own.get(key))) for key in parameters(policy_class)}
    limits, utilization = _limits(policy, engine, table.queue, cost)
    if utilization is not None:
        settings["gpu_memory_utilization"] = utilization
    return Run(
        policy=policy,
        limits=limits,
        cost=cost,
        requests=requests,
        max_iterations=table.run.max_iterations,
        engine=name,
        settings=settings,
        source=source,
        inline=table.workload.written_out and not table.workload.reacts,
        queue=QueueOrder(table.queue.order, table.queue.aging),
        retry=None if table.workload.retry is None else table.workload.retry.backoff(),
        deadlines=table.run.deadlines,
        clients=table.workload.clients,
        think_time=table.workload.think_time,
        max_concurrency=table.workload.max_concurrency,
        notes=() if utilization is not None else _beyond_memory(policy, limits, cost),
    )


def _as_json(value: Any) -> Any:
    """A setting as a trace can hold it; what JSON has no form for, as Python writes it."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return repr(value)
    return value


def _limits(policy: Any, engine: Mapping[str, Any], queue: QueueTable, cost: CostModel) -> tuple[Limits, float | None]:
    """The core's bounds, and the gpu_memory_utilization that the number of KV blocks is from, if it is."""
    taken = policies.limits_of(type(policy))
    try:
        checked = validate(LimitSettings, {core: engine[own] for own, core in taken.items() if own in engine}, "engine")
    except InputError as error:
        names = {f"engine.{core}": f"engine.{own}" for own, core in taken.items()}
        error.place = names.get(error.place or "", error.place)
        raise
    given = checked.model_dump(exclude_unset=True) | getattr(policy, "fixes", {})
    if getattr(policy, "own_queue", False) and queue != QueueTable():
        key, value = next((key, value) for key, value in queue if value != getattr(QueueTable(), key))
        raise InputError(None, f"queue.{key}", value, "the policy has its own order and bound of the queue")
    if queue.aging is not None and queue.order != "priority":
        raise InputError(None, "queue.aging", queue.aging, "needs order = 'priority'")
    if given.get("max_queue") == 0 and getattr(type(policy), "on_arrival", Policy.on_arrival) is Policy.on_arrival:
        raise InputError(
            None, "engine.max_queue", 0, "must be at least 1: with this policy every request comes to the queue first"
        )
    utilization = _utilization(policy, engine, given)
    if utilization is not None:
        given["num_gpu_blocks"] = _room_for_blocks(cost, utilization, given)
    blocks = given.get("num_gpu_blocks")
    if blocks is not None:
        given["num_gpu_blocks"] = blocks - getattr(policy, "reserved_blocks", 0)
        if given["num_gpu_blocks"] < 1:
            raise InputError(
                None, "engine.num_gpu_blocks", blocks, "must be at least 2: the engine keeps one for itself"
            )
    elif given.get("enable_prefix_caching"):
        raise InputError(None, "engine.enable_prefix_caching", True, "needs num_gpu_blocks: the blocks to cache in")
    return Limits(**given, shed=queue.when_full == "shed"), utilization


def _utilization(policy: Any, engine: Mapping[str, Any], given: Mapping[str, Any]) -> float | None:
    """gpu_memory_utilization, where it decides: num_gpu_blocks goes before it, as --num-gpu-blocks-override in vLLM."""
    names = MemorySettings.model_fields
    if "num_gpu_blocks" not in policies.limits_of(type(policy)).values():
        return None
    own = {name: engine[name] for name in names if name in engine and name not in parameters(type(policy))}
    checked: MemorySettings = validate(MemorySettings, own, "engine")
    return checked.gpu_memory_utilization if given.get("num_gpu_blocks") is None else None


def _room_for_blocks(cost: CostModel, utilization: float, given: Mapping[str, Any]) -> int:
    count = getattr(cost, "kv_blocks", None)
    if count is None:
        expected = "needs a cost model that knows GPU and model, such as 'roofline'; or give the number of KV blocks"
        raise InputError(None, "engine.gpu_memory_utilization", utilization, expected)
    blocks: int = count(
        utilization,
        given.get("block_size", LimitSettings().block_size),
        given.get("max_num_batched_tokens") or STEP_TOKENS,
    )
    return blocks


def _beyond_memory(policy: Any, limits: Limits, cost: CostModel) -> tuple[str, ...]:
    """That a number of KV blocks that was given is more than the GPU has room for, as far as the cost model knows it.

    Told, not refused: what was measured may be a little more than what is computed. Raises SettingError where not even
    the weights fit.
    """
    count = getattr(cost, "most_blocks", None)
    most = None if count is None else count(limits.block_size, limits.max_num_batched_tokens or STEP_TOKENS)
    if most is None or limits.num_gpu_blocks is None:
        return ()
    blocks = limits.num_gpu_blocks + getattr(policy, "reserved_blocks", 0)
    if blocks <= most:
        return ()
    own = next(own for own, core in policies.limits_of(type(policy)).items() if core == "num_gpu_blocks")
    about = cost.describe()
    room = f"{most:,} of {limits.block_size} tokens fit on {about['gpu'] or 'the GPU'}"
    beside = f"beside the weights of {about['llm']}, in all of its memory"
    return (f"{own} = {blocks:,}, but only {room} {beside}: a real engine would run out of it",)


def _override(document: dict[str, Any], key: str, value: Any) -> str:
    """Set a value by its dotted key, where an entry of a list goes by its name. Returns the place as errors name it."""
    *sections, last = key.split(".")
    table: Any = document
    path: list[str | int] = []
    while sections:
        named = NAMED.get(place(path))
        if named is not None:
            position, length = _position(table, sections, named, key)
            path.append(position)
            table, sections = table[position], sections[length:]
        else:
            section = sections.pop(0)
            path.append(section)
            empty: Any = [] if place(path) in NAMED and sections else {}
            table = table.setdefault(section, empty) if isinstance(table, dict) else None
    if not all(map(str, (*path, last))):
        raise _no_key(key, unnamed=True)
    if not isinstance(table, dict) or not path:
        named = NAMED.get(place(path))
        if named is not None:
            raise InputError(f"--set {key}", None, None, f"needs a key behind the {named[0]}: --set {key}.KEY=VALUE")
        raise _no_key(key)
    table[last] = value
    return place([*path, last])


def _no_key(key: str, unnamed: bool = False) -> InputError:
    why = ", a name beside a dot is missing" if unnamed else ""
    expected = f"is no SECTION.KEY{why}; must be SECTION.KEY=VALUE, such as engine.prefill_chunk=2"
    return InputError(f"--set {key}", None, None, expected)


def _position(table: Any, sections: Sequence[str], named: tuple[str, str], key: str) -> tuple[int, int]:
    """Which entry of a list the next sections name, and how many of them do: a name may hold dots."""
    field, message = named
    names = (
        [entry.get(field) if isinstance(entry, dict) else None for entry in table] if isinstance(table, list) else []
    )
    told = [".".join(sections[:length]) for length in range(len(sections), 0, -1)]
    for name in told:
        if name in names:
            return names.index(name), name.count(".") + 1
    if not sections[0]:
        raise _no_key(key, unnamed=True)
    known = [name for name in names if isinstance(name, str)]
    meant = next((name for name in told if nearest(name, known)), told[-1])
    raise InputError(f"--set {key}", None, None, f"{message} {meant!r}{nearest(meant, known)}")


def _refuse_duplicates(requests: Sequence[Request]) -> None:
    seen: dict[str, int] = {}
    for position, request in enumerate(requests):
        if request.id in seen:
            raise InputError(
                None,
                f"workload.requests[{position}].id",
                request.id,
                f"must be unique; requests[{seen[request.id]}] has it too",
            )
        seen[request.id] = position


def _refuse_unknown_settings(engine: Mapping[str, Any], classes: Sequence[type]) -> None:
    """A key is known if at least one of the named policies takes it."""
    known = ["policy", *(name for c in classes for name in policies.settings_of(c))]
    for key in engine:
        if key not in known:
            others = [name for name in policies.names() if key in policies.settings_of(policies.find(name))]
            if others:
                raise InputError(None, f"engine.{key}", None, f"no setting of this policy, only of {', '.join(others)}")
            raise InputError(None, f"engine.{key}", None, f"unknown key{nearest(key, known)}")
