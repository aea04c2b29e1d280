"""GPUs and language models by name. The data is in gpus.toml and llms.toml, each entry with its origin."""

import re
import tomllib
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from batchlab.catalog.config import read_config, shape
from batchlab.catalog.llm import Llm
from batchlab.errors import InputError, nearest
from batchlab.settings import Count, Table, validate

SIZES = re.compile(r"(?<![a-z\d.])(?:\d+x|[ae])?\d+(?:\.\d+)?[bm](?![a-z\d])")
"""How large a model is, in its name: 8b, 270m, 8x7b, 30b and a3b."""
Positive = Annotated[float, Field(gt=0, le=1e9, allow_inf_nan=False)]


class Gpu(Table):
    """One GPU's peaks, as its vendor states them. The file says what each means."""

    tflops: Positive
    bandwidth_tb_s: Positive
    memory_gib: Positive
    link_gb_s: Positive
    fp8: bool = False
    sms: Count | None = None
    origin: str


def gpu_names() -> list[str]:
    """All GPUs, in the file's order."""
    return list(_read("gpus.toml"))


def llm_names() -> list[str]:
    """All models, in the file's order."""
    return list(_read("llms.toml"))


def find_gpu(name: str, place: str = "cost.gpu") -> Gpu:
    """A GPU by its name. Raises InputError, with the name most like it."""
    gpu: Gpu = validate(Gpu, _entry("gpus.toml", name, place, "GPU", ""))
    return gpu


def find_llm(name: str, place: str = "cost.llm") -> Llm:
    """A model by its name, or by a path to its config.json. Raises InputError."""
    if name.endswith(".json"):
        return read_config(Path(name))
    entry = _entry("llms.toml", name, place, "model", ", or give a path to its config.json")
    return shape({key: value for key, value in entry.items() if key != "origin"})


def origin_of_llm(name: str) -> str:
    """Where a model's numbers are from."""
    return str(_read("llms.toml")[name]["origin"])


def alike_llm(name: str) -> str:
    """What a message says of the model most like one that is not there; empty if none is."""
    return _like(name, llm_names())


def repository_of_llm(name: str) -> str | None:
    """The repository on Hugging Face that a model's numbers are from, if they are from one."""
    found = re.search(r"config\.json of ([\w.-]+/[\w.-]+)", _read("llms.toml").get(name, {}).get("origin", ""))
    return None if found is None else found[1]


def _entry(file: str, name: str, place: str, kind: str, other: str) -> dict[str, Any]:
    known = _read(file)
    name = name if name in known else name.lower()  # vendors write L40S and Qwen2.5-7B
    if name not in known:
        raise InputError(None, place, name, f"no such {kind}: `batchlab catalog` lists them{other}{_like(name, known)}")
    return dict(known[name])


def _like(name: str, known: Iterable[str]) -> str:
    """Names that begin so, else the one most like it; of Hugging Face's names the part that is the model's.

    A model of another size is not like one: it takes another time and another memory.
    """
    own = name.rpartition("/")[2].lower()
    longer = [repr(other) for other in known if own and other.startswith(own)]
    hint = nearest(own, [other for other in known if SIZES.findall(other) == SIZES.findall(own)])
    if not longer and not hint and "-" not in own:  # h101 is like the beginning of h100-sxm, not like the whole
        begins = {other.partition("-")[0]: other for other in reversed(list(known))}
        longer = [repr(begins[b]) for b in get_close_matches(own, begins, 1, 0.7)]
    return f" (did you mean {' or '.join(longer[:3])}?)" if longer else hint


@cache
def _read(file: str) -> dict[str, dict[str, Any]]:
    return tomllib.loads(files(__name__).joinpath(file).read_text(encoding="utf-8"))
