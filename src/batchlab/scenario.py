"""Scenario files: one TOML file says what decides, how time passes, who asks, and when to stop."""

import hashlib
import os
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from batchlab import costs, policies
from batchlab.clients.request import Request
from batchlab.core.scheduler import Limits
from batchlab.errors import InputError, nearest
from batchlab.settings import Count, LimitSettings, Table, Time, construct, parameters, validate
from batchlab.simulate import Run

PRIORITY_NAMES = {"high": 0, "normal": 1}
DEFAULT_STEP_LIMIT = 1_000_000
"""Iteration limit where time passes only by iterating and the file gives none: an idle gap must not run for ever."""


class RequestTable(Table):
    """One request, written out."""

    id: str = Field(min_length=1)
    arrival: Time
    prompt: Count
    output: Count
    max_tokens: Count | None = None
    priority: int | Literal["high", "normal"] = "normal"

    @field_validator("id")
    @classmethod
    def _encodable(cls, value: str) -> str:
        value.encode()
        return value

    @field_validator("priority")
    @classmethod
    def _bounded(cls, value: int | str) -> int | str:
        if isinstance(value, int) and abs(value) > 2**31:
            raise ValueError("must lie between -2^31 and 2^31")
        return value

    @model_validator(mode="after")
    def _limit_covers_output(self) -> "RequestTable":
        if self.max_tokens is not None and self.max_tokens < self.output:
            raise ValueError(f"max_tokens = {self.max_tokens} must be at least output = {self.output}")
        return self

    def request(self) -> Request:
        """The request; without a max_tokens of its own it gets its true output length, an oracle."""
        priority = PRIORITY_NAMES.get(self.priority, 1) if isinstance(self.priority, str) else self.priority
        limit = self.output if self.max_tokens is None else self.max_tokens
        return Request(self.id, self.arrival, self.prompt, self.output, limit, priority)


class WorkloadTable(Table):
    """[workload]: who asks."""

    requests: list[RequestTable]


class RunTable(Table):
    """[run]: when to stop."""

    max_iterations: Count | None = None


class ScenarioTable(Table):
    """The whole file. [engine] and [cost] are checked against what they name."""

    title: str = ""
    engine: dict[str, Any]
    cost: dict[str, Any]
    run: RunTable = RunTable()
    workload: WorkloadTable


@dataclass(frozen=True)
class Scenario:
    """A checked scenario: one run for each policy it names, in order."""

    name: str
    title: str
    runs: list[Run]


def load(
    path: str | os.PathLike[str], overrides: Mapping[str, Any] | None = None, engines: Sequence[str] = ()
) -> Scenario:
    """Read a scenario file. Raises InputError.

    overrides: values by dotted key, such as {"engine.prefill_chunk": 2}. engines: policies instead of the file's.
    """
    try:
        data = Path(path).read_bytes()
        document = tomllib.loads(data.decode("utf-8"))
    except OSError as error:
        raise InputError(path, None, None, f"cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(path, f"byte {error.start}", None, "not UTF-8; a scenario is a TOML text file") from error
    except tomllib.TOMLDecodeError as error:
        raise InputError(path, None, None, f"not valid TOML: {error}") from error
    for key, value in (overrides or {}).items():
        _override(document, key, value)
    try:
        source = {"name": Path(path).name, "sha256": hashlib.sha256(data).hexdigest()}
        return build(document, Path(path).name, source, engines)
    except InputError as error:
        given = any(
            error.place and (error.place == key or error.place.startswith(f"{key}.")) for key in overrides or ()
        )
        error.file = f"--set {error.place}" if given else error.file or str(path)
        error.place = None if given else error.place
        raise


def build(
    document: Mapping[str, Any],
    name: str = "scenario",
    source: Mapping[str, Any] | None = None,
    engines: Sequence[str] = (),
) -> Scenario:
    """A scenario from a document of the file's shape. Raises InputError, without a file."""
    table: ScenarioTable = validate(ScenarioTable, dict(document))
    requests = [entry.request() for entry in table.workload.requests]
    _refuse_duplicates(requests)
    engine = dict(table.engine)
    named = _policy_names(engine.pop("policy", list(engines) or None))
    chosen = list(engines) or named
    _refuse_unknown_settings(engine, [policies.find(policy) for policy in {*named, *chosen}])
    limit = table.run.max_iterations
    source = {"name": None, "sha256": None, **(source or {}), "requests": len(requests)}
    runs = [_run(policy, engine, table.cost, requests, limit, source) for policy in chosen]
    return Scenario(name, table.title, runs)


def _policy_names(chosen: Any) -> list[str]:
    names = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        known = ", ".join(policies.names())
        raise InputError(None, "engine.policy", chosen, f"must name a policy, or a list of them: {known}")
    return names


def _run(
    name: str,
    engine: Mapping[str, Any],
    cost: Mapping[str, Any],
    requests: Sequence[Request],
    limit: int | None,
    source: dict[str, Any],
) -> Run:
    """The run of one policy, with those of the engine's settings that it and the core take."""
    policy_class = policies.find(name)
    own = {key: value for key, value in engine.items() if key in parameters(policy_class)}
    policy = construct(policy_class, own, "engine")
    core = {key: engine[key] for key in LimitSettings.model_fields if key in engine}
    limits = validate(LimitSettings, core, "engine")
    cost_model = costs.build(cost)
    return Run(
        policy=policy,
        limits=Limits(**limits.model_dump()),
        cost=cost_model,
        requests=requests,
        max_iterations=DEFAULT_STEP_LIMIT if limit is None and cost_model.idle == "step" else limit,
        engine=name,
        settings={key: getattr(policy, key, own.get(key)) for key in parameters(policy_class)},
        source=source,
    )


def _override(document: dict[str, Any], key: str, value: Any) -> None:
    *sections, last = key.split(".")
    table: Any = document
    for section in sections:
        table = table.setdefault(section, {}) if isinstance(table, dict) else None
    if not isinstance(table, dict) or not sections:
        raise InputError(f"--set {key}", None, None, "must be SECTION.KEY=VALUE, such as engine.prefill_chunk=2")
    table[last] = value


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
    """A key is known if the core or at least one of the named policies takes it."""
    known = [*LimitSettings.model_fields, *(name for c in classes for name in parameters(c)), "policy"]
    for key in engine:
        if key not in known:
            raise InputError(None, f"engine.{key}", None, f"unknown key{nearest(key, known)}")
