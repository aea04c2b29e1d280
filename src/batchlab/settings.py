"""Checking settings against what takes them: one model a section, one clear line an error."""

import inspect
import tomllib
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, get_args

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, create_model

from batchlab.errors import InputError, nearest, raised

MOST_TOKENS = 2**40
"""Largest length, limit or count that is accepted: far beyond any use, far below what overflows."""
LATEST = 2**62
"""Largest time that is accepted; in ns, 146 years."""

Count = Annotated[int, Field(ge=1, le=MOST_TOKENS)]
BlockSize = Annotated[int, Field(ge=1, le=2**16)]
"""Who decodes is kept by place within a block; engines have blocks of at most a few hundred tokens."""
CountOrZero = Annotated[int, Field(ge=0, le=MOST_TOKENS)]
Whole = Annotated[int, Field(ge=-MOST_TOKENS, le=MOST_TOKENS)]
BOUNDED: dict[Any, Any] = {int: Whole, int | None: Whole | None}
"""What an annotation of a class's own settings is checked as: integers are bounded everywhere."""
Time = Annotated[int, Field(ge=0, le=LATEST)]


class Table(BaseModel):
    """A section of a file: no unknown keys, no silent conversions (1.0, "1" and true are not the integer 1)."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class LimitSettings(Table):
    """The core's own settings, given in [engine] beside the policy's."""

    max_num_seqs: Count | None = None
    max_num_batched_tokens: Count | None = None
    max_queue: CountOrZero | None = None
    block_size: BlockSize = 16
    num_gpu_blocks: Count | None = None
    enable_prefix_caching: bool = False
    max_model_len: Count | None = None


def share_of_memory(value: float) -> float:
    """A share that is neither nothing nor more than all. Raises ValueError."""
    if not 0 < value <= 1:  # nor no number
        raise ValueError("must be above 0, at most 1")
    return value


class MemorySettings(Table):
    """Instead of num_gpu_blocks, where the cost model knows the GPU's memory and the model's."""

    gpu_memory_utilization: Annotated[float, AfterValidator(share_of_memory)] | None = None


def parameters(callable_: Any) -> dict[str, inspect.Parameter]:
    """The named parameters that a class is made with."""
    if callable_.__init__ is object.__init__:
        return {}
    try:
        signature = inspect.signature(callable_.__init__, eval_str=True)  # a compiled class has its annotations as text
    except Exception:  # whatever a class of one's own has written there; the check of its settings says so
        signature = inspect.signature(callable_.__init__)
    found = list(signature.parameters.values())[1:]
    return {p.name: p for p in found if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}


def parse_setting(
    text: str, option: str = "--set", form: str = "SECTION.KEY=VALUE, such as engine.prefill_chunk=2"
) -> tuple[str, Any]:
    """KEY=VALUE, the value written as in TOML; a bare word is a text. Raises InputError with option and form."""
    key, equals, value = text.partition("=")
    key = key.strip()
    if not equals or not key or not value.strip():
        raise InputError(option, None, text, f"must be {form}")
    try:
        parsed = tomllib.loads(f"value = {value}")
    except RecursionError as error:
        raise InputError(option, key, None, "nested too deeply") from error
    except ValueError:
        parsed = {"value": value.strip()}
    if len(parsed) != 1:
        raise InputError(option, None, text, f"must be one {form.partition(',')[0]}")
    return key, parsed["value"]


def construct(callable_: Any, settings: Mapping[str, Any], section: str, name: str | None = None) -> Any:
    """Make an object from a section's settings, checked against its signature.

    name: as errors inside the class call it, which are mended there. Raises InputError; one about a setting comes
    without a file.
    """
    fields: dict[str, Any] = {}
    for key, p in parameters(callable_).items():
        kind = BOUNDED.get(p.annotation, Any if p.annotation is p.empty else p.annotation)
        fields[key] = (kind, ... if p.default is p.empty else p.default)
    try:
        model = create_model(callable_.__name__, __config__=Table.model_config, **fields)
        model.model_rebuild()
    except Exception as error:  # pydantic raises several kinds for an annotation that it cannot resolve
        expected = f"cannot read its settings: {_first_line(error)}"
        raise InputError(name or callable_.__name__, None, None, expected) from error
    checked = validate(model, dict(settings), section)
    try:
        return callable_(**{key: getattr(checked, key) for key in fields})
    except KeyboardInterrupt:
        raise
    except InputError as error:
        said = (error.place or "").rpartition(".")[2]
        if error.file is None and ":" in (name or "") and said not in settings:  # what its class gave, not the section
            error.file = name
        raise
    except BaseException as error:
        raise InputError(name or callable_.__name__, None, None, raised(error)) from error


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]


def validate(model: type[BaseModel], data: Any, prefix: str = "", known: Iterable[str] = ()) -> Any:
    """The data as a model, or InputError (without a file) about the first thing that is wrong."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        errors = error.errors()
        first = next((e for e in errors if e["type"] == "extra_forbidden"), errors[0])
        location = [
            part for part in first["loc"] if not (isinstance(part, str) and part.startswith(("int", "literal")))
        ]
        if prefix:
            location.insert(0, prefix)
        missing = first["type"] == "missing"
        expected = _expectation(first)
        choices = next((e for e in errors if e["type"] == "literal_error" and e["loc"][:-1] == first["loc"][:-1]), None)
        if choices is not None and choices is not first:
            expected += f", or {_expectation(choices)}"
        if first["type"] == "extra_forbidden":
            siblings = [*_sibling_keys(model, first["loc"]), *known]
            expected = f"unknown key{nearest(str(first['loc'][-1]), siblings)}"
        value = None if missing or first["type"] == "extra_forbidden" else first["input"]
        if first["type"] == "value_error" and isinstance(value, dict):  # about how its keys go together, which it says
            value = None
        raise InputError(None, place(location), value, expected) from None


def place(location: Iterable[Any]) -> str:
    """A path into a document, as `workload.requests[3].prompt`."""
    text = ""
    for part in location:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else str(part)
    return text


def _sibling_keys(model: type[BaseModel], location: tuple[Any, ...]) -> list[str]:
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        if part in model.model_fields:
            model = _table_in(model.model_fields[part].annotation) or model
    return list(model.model_fields)


def _table_in(annotation: Any) -> type[BaseModel] | None:
    """The first model of an annotation such as `Annotated[list[Entry], ...] | None`."""
    if inspect.isclass(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for part in get_args(annotation) if (found := _table_in(part)) is not None), None)


def _expectation(error: Any) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "missing":
            return "is missing"
        case "greater_than_equal":
            return f"must be at least {context['ge']}"
        case "greater_than":
            return f"must be above {context['gt']}"
        case "less_than_equal":
            return f"must be at most {context['le']}"
        case "int_type" | "int_parsing_size":
            return "must be an integer"
        case "float_type":
            return "must be a number"
        case "bool_type":
            return "must be true or false"
        case "string_type":
            return "must be a text"
        case "list_type":
            return "must be a list"
        case "model_type" | "dict_type" | "model_attributes_type":
            return "must be a table of settings"
        case "string_too_short":
            return "must not be empty"
        case "value_error":
            return str(context["error"])
        case _:
            return str(error["msg"]).removeprefix("Input should be ")
