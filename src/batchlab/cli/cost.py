"""batchlab cost, batchlab catalog."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from batchlab import catalog as catalog_room
from batchlab import policies
from batchlab.cli.columns import print_folded
from batchlab.cli.documents import print_json
from batchlab.cli.from_command import overrides_of
from batchlab.cli.tables import console, milliseconds, say
from batchlab.costs.base import CostModel
from batchlab.costs.roofline import TERMS, Roofline
from batchlab.costs.sheet import sizes, typical_steps
from batchlab.errors import InputError, nearest
from batchlab.files import read_toml
from batchlab.scenario import STEP_TOKENS, Scenario, ScenarioTable, cost_of, override
from batchlab.settings import LimitSettings, MemorySettings, parse_setting, validate
from batchlab.units import NS_IN_S
from batchlab.vllm_command import UTILIZATION

ENGINE = ("gpu_memory_utilization", "block_size", "max_num_batched_tokens")
"""Settings of an engine that decide how many KV blocks there are."""


@click.command()
@click.argument("scenario", type=click.Path(), required=False)
@click.option("--gpu", metavar="NAME", help="Short for --set cost.gpu=NAME; `batchlab catalog` lists them.")
@click.option("--llm", metavar="NAME", help="Short for --set cost.llm=NAME: of the catalog, or PATH/config.json.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Any setting: --set cost.tensor_parallel=2")
@click.option("--from-command", "command", metavar="COMMAND", help="Settings of a `vllm serve ...` command.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def cost(
    scenario: str | None,
    gpu: str | None,
    llm: str | None,
    settings: tuple[str, ...],
    command: str | None,
    as_json: bool,
) -> None:
    """Show what typical steps take under a SCENARIO's cost model, or under roofline with --gpu and --llm.

    For roofline also what the time is spent on, and the KV blocks that the weights leave room for: at the scenario's
    gpu_memory_utilization, block_size and max_num_batched_tokens, or vLLM's defaults. Exits with 1 if the model does
    not fit.
    """
    overrides = dict(parse_setting(setting) for setting in settings)
    overrides |= {f"cost.{key}": value for key, value in (("gpu", gpu), ("llm", llm)) if value is not None}
    if command is not None:
        if scenario is None:
            raise InputError("--from-command", None, None, "goes with a SCENARIO, which says the GPU")
        overrides = overrides_of(command, scenario, overrides, overrides, ["vllm"]) | overrides
    model, engine = _read(scenario, overrides)
    document: dict[str, Any] = {"cost": model.describe(), "unit": model.unit}
    if isinstance(model, Roofline):
        document["memory"] = sizes(model, *engine)
    document["steps"] = typical_steps(model)
    if as_json:
        print_json(document)
    else:
        _print(document)
    if document.get("memory", {}).get("shortage"):
        sys.exit(1)


def _read(scenario: str | None, overrides: dict[str, Any]) -> tuple[CostModel, tuple[float, int, int, int | None]]:
    """The cost model; memory share, block size, step size and given blocks of the engine. Raises InputError."""
    if scenario is None:
        document: dict[str, Any] = {"cost": {"model": "roofline"}}
    else:
        document, _ = read_toml(scenario)
    _refuse_unknown(document, overrides)
    places = override(document, overrides)
    try:
        model = cost_of(document, Path() if scenario is None else Path(scenario).parent)
        engine = document.get("engine", {})
        if not isinstance(engine, dict):
            raise InputError(None, "engine", engine, "must be a table of settings")
        return model, _engine(engine)
    except InputError as error:
        if scenario is None and error.file is None:
            missing = error.place == "cost.llm" and error.expected == "is missing"
            if missing:
                error.expected = "is missing: give a SCENARIO, or --gpu and --llm (`batchlab catalog` lists them)"
            if missing or not places:
                error.file = "batchlab cost"
        raise Scenario("", "", [], {}, scenario or "batchlab cost", places).locate(error) from error.__cause__


def _refuse_unknown(document: Mapping[str, Any], overrides: Mapping[str, Any]) -> None:
    """Raises InputError for a --set of a section or an engine's setting that there is not; a [cost] says so itself."""
    engine = document.get("engine", {})
    named = engine.get("policy", ()) if isinstance(engine, dict) else ()
    names = [named] if isinstance(named, str) else named
    known = {key for name in names if isinstance(name, str) for key in policies.settings_of(policies.find(name))}
    for key in overrides:
        section, dot, name = key.partition(".")
        if dot and section not in ScenarioTable.model_fields:
            raise InputError(
                f"--set {key}", None, None, f"no such section{nearest(section, ScenarioTable.model_fields)}"
            )
        if section == "engine" and name not in {"policy", *ENGINE, *known}:
            raise InputError(f"--set {key}", None, None, f"unknown key{nearest(name, (*ENGINE, *known))}")


def _engine(given: dict[str, Any]) -> tuple[float, int, int, int | None]:
    """gpu_memory_utilization, block_size, max_num_batched_tokens and num_gpu_blocks, where [engine] has them under
    these names."""
    limits = {key: given[key] for key in ("block_size", "max_num_batched_tokens", "num_gpu_blocks") if key in given}
    checked: LimitSettings = validate(LimitSettings, limits, "engine")
    share = {key: given[key] for key in MemorySettings.model_fields if key in given}
    memory: MemorySettings = validate(MemorySettings, share, "engine")
    utilization = memory.gpu_memory_utilization or UTILIZATION
    tokens = checked.max_num_batched_tokens or STEP_TOKENS
    return utilization, checked.block_size, tokens, checked.num_gpu_blocks


def _print(document: dict[str, Any]) -> None:
    out = console()
    settings = document["cost"]
    if "memory" in document:
        memory = document["memory"]
        gpu = settings["gpu"] or "a GPU of your own"
        say(out, f"{settings['llm']} on {memory['gpus']} x {gpu}, {memory['parameters'] / 1e9:,.2f} billion parameters")
        for line in _memory_lines(settings, memory):
            say(out, line)
    else:
        say(out, ", ".join(f"{key} = {value}" for key, value in settings.items()))
    _print_steps(out, document)


def _print_steps(out: Console, document: dict[str, Any]) -> None:
    """A row a typical step: its time, and the terms where there are any."""
    steps = document["steps"]
    columns: dict[str, list[str]] = {"step": [step["step"] for step in steps]}
    if document["unit"] == "ns":
        columns["ms"] = [milliseconds(step["duration"]) for step in steps]
        columns["tokens/s"] = [f"{step['tokens'] * NS_IN_S / step['duration']:,.0f}" for step in steps]
    else:
        columns[f"{document['unit']}s"] = [f"{step['duration']:,}" for step in steps]
    if "memory" in document:
        columns["binds"] = [step["binds"] for step in steps]
        columns |= {term: [milliseconds(step["terms"][term]) for step in steps] for term in TERMS}
    print_folded(out, columns, tuple(name for name in columns if name not in ("step", "binds")))


def _memory_lines(settings: dict[str, Any], memory: dict[str, Any]) -> list[str]:
    """What each GPU holds, in words."""
    usable, weights, reserve = (memory[f"{key}_bytes"] / 1e9 for key in ("usable", "weight", "reserve"))
    blocks, size = memory["num_gpu_blocks"], memory["block_size"]
    kv = f"KV {memory['kv_bytes_per_token']:,} bytes a token ({settings['kv_dtype']})"
    lines = [f"each GPU: weights {weights:,.2f} GB ({settings['weight_dtype']}), {kv}"]
    given = memory["given_num_gpu_blocks"]
    own = [] if given is None else [f"the scenario sets num_gpu_blocks = {given:,}: {given * size:,} tokens"]
    if memory["shortage"] is not None:
        return [*lines, memory["shortage"], *own]
    lines.append(
        f"at gpu_memory_utilization = {memory['gpu_memory_utilization']} and steps of at most "
        f"{memory['max_num_batched_tokens']:,} tokens: {usable:,.2f} GB - weights - reserve {reserve:,.2f} GB = "
        f"{usable - weights - reserve:,.2f} GB for KV"
    )
    lines.append(f"num_gpu_blocks = {blocks:,} of {size} tokens: {blocks * size:,} tokens")
    return [*lines, *(f"{line}; this goes before gpu_memory_utilization" for line in own)]


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead of tables.")
def catalog(as_json: bool) -> None:
    """List the GPUs and models that cost models know by name."""
    gpus = {name: catalog_room.find_gpu(name) for name in catalog_room.gpu_names()}
    llms = {name: catalog_room.find_llm(name) for name in catalog_room.llm_names()}
    if as_json:
        document = {
            "gpus": [{"name": name, **gpu.model_dump()} for name, gpu in gpus.items()],
            "llms": [
                {"name": name, "parameters": llm.parameters, "active_parameters": llm.active_parameters}
                | llm.model_dump()
                | {"origin": catalog_room.origin_of_llm(name)}
                for name, llm in llms.items()
            ],
        }
        print_json(document)
        return
    out = console()
    peaks = {"TFLOP/s": "tflops", "TB/s": "bandwidth_tb_s", "GiB": "memory_gib", "link GB/s": "link_gb_s", "SMs": "sms"}
    columns: dict[str, list[str]] = {"gpu": list(gpus)}
    for head, peak in peaks.items():
        values = [getattr(gpu, peak) for gpu in gpus.values()]
        columns[head] = ["" if value is None else f"{value:g}" for value in values]
    print_folded(out, columns, tuple(peaks))
    out.print()
    shapes = {
        "billion parameters": [f"{llm.parameters / 1e9:,.2f}" for llm in llms.values()],
        "a token uses": [f"{llm.active_parameters / 1e9:,.2f}" for llm in llms.values()],
        "layers": [f"{llm.layers}" for llm in llms.values()],
        "hidden": [f"{llm.hidden:,}" for llm in llms.values()],
        "KV values a token": [f"{llm.layers * llm.kv_values():,}" for llm in llms.values()],
    }
    stored = [llm.weight_dtype or "" for llm in llms.values()]
    print_folded(out, {"llm": list(llms), **shapes, "stored as": stored}, tuple(shapes))
