"""What a pasted `vllm serve ...` command changes in a scenario. What of it cannot be followed is said on stderr."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchlab import costs, policies
from batchlab.catalog import alike_llm
from batchlab.cli.notes import note
from batchlab.cli.tables import KV_SETTINGS
from batchlab.compare import said
from batchlab.errors import InputError, shorten
from batchlab.files import read_toml
from batchlab.policies import limits_of
from batchlab.scenario import cost_of, override
from batchlab.settings import LimitSettings, parameters
from batchlab.vllm_command import COST, COST_FLAGS, MEMORY, UTILIZATION, Command, batch_defaults, parse


def overrides_of(
    command: str,
    scenario: str,
    own: Mapping[str, Any],
    given: Collection[str],
    names: Sequence[str],
    varied: Collection[str] = (),
) -> dict[str, Any]:
    """Values by dotted key, for [engine] and for a [cost] that computes step times from model and GPUs.

    own: what --set says. given: all keys that other options give values; they go before the command. names: the
    policies that will run. varied: keys that other runs will have other values of. Raises InputError.
    """
    document, _ = read_toml(scenario)
    override(document, own)
    engine = document.get("engine")
    engine = engine if isinstance(engine, dict) else {}
    folder = Path(scenario).parent
    has_blocks = bool(MEMORY & {*engine, *(key.removeprefix("engine.") for key in (*given, *varied))})
    cost_class = _cost_class(document, folder)
    found = parse(command, hasattr(cost_class, "kv_blocks"), has_blocks)
    usual = _usual(document, folder, engine | found.settings) if hasattr(cost_class, "kv_blocks") else {}
    found = _completed(found, usual, engine, {*given, *varied}, names)
    changed = _costs(found, document, folder, cost_class, given, varied)
    classes = _classes(names)
    known = {name for policy in classes for name in policies.settings_of(policy)} if classes else {*found.settings}
    settings = {key: value for key, value in found.settings.items() if key in known and f"engine.{key}" not in given}
    ignored = [key for key in found.settings if key not in known and key not in found.usual]
    if ignored:
        note(f"{' and '.join(names)} does not take these settings of the command, ignored: {', '.join(ignored)}")
    if found.matters:
        note(f"not modelled, though the engine runs otherwise with it: {', '.join(found.matters)}")
    if found.unknown:
        note(f"not modelled, ignored: {', '.join(found.unknown)}")
    if classes:
        _note_rest(found, engine, settings, given, classes[0], usual)
    return {f"engine.{key}": value for key, value in settings.items()} | changed


def _usual(document: dict[str, Any], folder: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What vLLM sets by the GPU of [cost]; nothing where something is wrong there, which loading it will say."""
    try:
        about = cost_of(document, folder).describe()
    except InputError:
        return {}
    whole = {key: value for key, value in settings.items() if isinstance(value, int)}
    return {**batch_defaults(about["gpu"], about["memory_gib"], whole), "gpu_memory_utilization": UTILIZATION}


def _cost_class(document: Mapping[str, Any], folder: Path) -> type[Any] | None:
    """The class of [cost]; None where something is wrong with it, which loading it will say."""
    section = document.get("cost")
    try:
        if isinstance(section, dict) and "from" not in section:
            return costs.find(section.get("model"))
        return type(cost_of(document, folder))
    except InputError:
        return None


def _classes(names: Sequence[str]) -> list[type[Any]]:
    """The policies' classes; none where one is wrong, which loading it will say."""
    try:
        return [policies.find(name) for name in names]
    except InputError:
        return []


def _costs(
    found: Command,
    document: dict[str, Any],
    folder: Path,
    cost_class: type[Any] | None,
    given: Collection[str],
    varied: Collection[str],
) -> dict[str, Any]:
    """What the command changes in [cost], which is nothing where step times were measured. Raises InputError."""
    section = document.get("cost")
    if cost_class is None or not isinstance(section, dict):
        return {}
    if "llm" not in found.cost and "llm" in section and "cost.llm" not in (*given, *varied):
        note(f"no model in the command: [cost] has llm = {said('llm', section['llm'])}")
    if not found.cost:
        return {}
    takes = parameters(cost_class) if hasattr(cost_class, "kv_blocks") and "from" not in section else {}
    values = {key: value for key, value in found.costs().items() if f"cost.{key}" not in given}
    follows = "llm" in takes and "llm" in found.cost and ("llm" in values or "cost.llm" in given)
    if "llm" in takes and "llm" in found.cost and not follows and "cost.llm" not in varied:
        _refuse_unknown(found.cost["llm"], section)
    taken = {key: value for key, value in values.items() if key in takes and section.get(key) != value}
    if taken:
        before = {key: f" instead of {section[key]}" if key in section else "" for key in taken}
        note(f"[cost] takes from the command: {', '.join(f'{key} = {taken[key]}{before[key]}' for key in taken)}")
    left_out = {key: takes[key].default for key in COST.values() if follows and key not in found.cost and key != "llm"}
    usual = {
        key: value
        for key, value in left_out.items()
        if section.get(key, value) != value and f"cost.{key}" not in given and key not in values
    }
    if usual:
        own = {key: "the model's own" if value is None else value for key, value in usual.items()}
        said_of = ", ".join(f"{key} = {own[key]} instead of {section[key]}" for key in own)
        note(f"not in the command, [cost] as vLLM has it: {said_of}")
    changed = {f"cost.{key}": value for key, value in (taken | usual).items()}
    try:
        override(document, changed)
        has = cost_of(document, folder).describe()
    except InputError:
        return changed  # loading it will say what is wrong
    left = [key for key in found.cost if f"cost.{key}" not in given and (key not in has or has[key] != values.get(key))]
    if left:
        _note_contradictions({key: found.cost[key] for key in left}, has)
    return changed


def _refuse_unknown(model: str, section: Mapping[str, Any]) -> None:
    """Step times of another model with this command's GPUs are of nothing that anybody runs; a config.json that the
    file names may well be this model's. Raises InputError."""
    if str(section.get("llm", "")).endswith(".json"):
        return
    raise InputError(
        "--from-command",
        "model",
        model,
        f"not in the catalog{alike_llm(model)}: --set cost.llm=PATH/config.json for its own, or --set cost.llm=NAME "
        "to use another's shape on purpose (`batchlab catalog` lists them)",
    )


def _completed(
    found: Command, usual: Mapping[str, Any], engine: Mapping[str, Any], given: Collection[str], names: Sequence[str]
) -> Command:
    """With the limits that nobody says, as vLLM has them by the GPU. Raises InputError where [cost] knows of none."""
    more = {}
    for key in ("max_num_seqs", "max_num_batched_tokens"):
        if [*names] == ["vllm"] and not {key, f"engine.{key}"} & {*found.settings, *engine, *given}:
            flag = f"--{key.replace('_', '-')}"
            if key not in usual:
                expected = f"vLLM's default depends on the GPU: add {flag} N to the command"
                raise InputError("--from-command", flag, None, expected)
            more[key] = usual[key]
    return replace(found, settings=found.settings | more, usual=[*found.usual, *more])


def _note_contradictions(left: Mapping[str, str], has: Mapping[str, Any]) -> None:
    """What the command says and [cost] does not follow, with what it has instead."""
    spelled = {
        key: f"model {shorten(value)}" if key == "llm" else f"--{COST_FLAGS[key]} {value}"
        for key, value in left.items()
    }
    parts = [f"{spelled[key]}, [cost] {key} = {has[key]}" for key in left if key in has]
    strange = [spelled[key] for key in left if key not in has]
    if strange:
        parts.append(f"{', '.join(strange)}, of which [cost] model = '{has['model']}' knows nothing")
    note(f"the command says {'; '.join(parts)}: times are of [cost]")
    if "llm" in left and "llm" in has:
        note("models that [cost] knows: `batchlab catalog`; any other by its config.json: --set cost.llm=PATH.json")


def _note_rest(
    found: Command,
    engine: Mapping[str, Any],
    settings: Mapping[str, Any],
    given: Collection[str],
    policy: type[Any],
    usual: Mapping[str, Any],
) -> None:
    """What the command leaves open, and where it is from. usual: what vLLM has by the GPU."""
    defaults = LimitSettings().model_dump()
    rest = {own: engine.get(own, defaults[core]) for own, core in limits_of(policy).items()}
    rest |= {key: engine[key] for key in MEMORY if key in engine}
    rest = {key: value for key, value in rest.items() if f"engine.{key}" not in given and key not in settings}
    told = {*settings, *(key for key, value in rest.items() if value is not None), *_names(given)}
    blocks = bool(MEMORY & told)
    if "num_gpu_blocks" in told:  # goes before the share of memory
        rest.pop("gpu_memory_utilization", None)
    if not blocks:
        rest = {key: value for key, value in rest.items() if key not in KV_SETTINGS}
    rest = {key: value for key, value in rest.items() if value is not None}
    parts = {
        "as vLLM has it on a GPU": {key: settings[key] for key in found.usual if key in settings},
        "from the file": {key: value for key, value in rest.items() if key in engine},
        "our defaults": {key: value for key, value in rest.items() if key not in engine},
    }
    for origin, shown in parts.items():
        own = {key: f" (vLLM: {said(key, usual[key])})" for key in rest if key in usual and usual[key] != rest[key]}
        if shown:
            texts = [f"{key} = {said(key, value)}{own.get(key, '')}" for key, value in shown.items()]
            note(f"not in the command, {origin}: {', '.join(texts)}")
    if not blocks and "num_gpu_blocks" in limits_of(policy).values():
        note("KV blocks are not modelled: set engine.num_gpu_blocks to the number that the engine logs at start")


def _names(given: Collection[str]) -> set[str]:
    return {key.removeprefix("engine.") for key in given if key.startswith("engine.")}
