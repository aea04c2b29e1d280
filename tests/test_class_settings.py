"""Keys of a class in a list are set by its name, in every command."""

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

from batchlab.cli.commands import cli
from batchlab.errors import InputError
from batchlab.scenario import override

CLASSES = "workload.generate.classes"
SCENARIO = """
[engine]
policy = "chunked"
max_num_seqs = 4
max_num_batched_tokens = 64
prefill_chunk = 16
[cost]
model = "linear"
unit = "ns"
per_iteration = 5_000_000
[workload.generate]
num_prompts = 20
seed = 1
arrivals = "poisson"
request_rate = 8
[[workload.generate.classes]]
name = "chat"
prompt = { distribution = "uniform", min = 5, max = 9 }
output = 4
[[workload.generate.classes]]
name = "rag.v2"
prompt = 30
output = 7
"""


@pytest.fixture
def scenario(tmp_path: Path) -> str:
    path = tmp_path / "s.toml"
    path.write_text(SCENARIO)
    return str(path)


def call(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def tokens(*words: str) -> int:
    done = call(*words, "--json")
    assert done.exit_code == 0, done.exception
    return int(json.loads(done.stdout)["runs"][0]["throughput"]["output_tokens"])


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (
            "workload.generate.classes.chat",
            "needs a key behind the name: --set workload.generate.classes.chat.KEY=VALUE",
        ),
        (".x", "is no SECTION.KEY"),
        ("engine..x", "is no SECTION.KEY"),
        ("x", "is no SECTION.KEY; must be SECTION.KEY=VALUE"),
        *(
            (key, "is no SECTION.KEY, a name beside a dot is missing; must be SECTION.KEY=VALUE")
            for key in (
                *(".", ".x", "engine..x", "engine.", "workload.", "workload.generate.classes."),
                *("workload.generate.classes..weight", "workload.generate.classes.chat."),
                *("workload.generate.classes.chat..min", "workload.requests."),
            )
        ),
    ],
)
def test_a_key_that_names_no_setting(key: str, said: str) -> None:
    with pytest.raises(InputError, match=re.escape(f"--set {key}: {said}")):
        override({"workload": {"generate": {"classes": [{"name": "chat"}]}}}, {key: 5})


def test_a_class_goes_by_its_name(scenario: str) -> None:
    few, many = f"{CLASSES}.rag.v2.weight=0.000001", f"{CLASSES}.rag.v2.weight=1000000"
    assert tokens("run", scenario, "--set", few) == 20 * 4
    assert tokens("run", scenario, "--set", many) == 20 * 7
    assert tokens("run", scenario, "--set", many, "--set", f"{CLASSES}.rag.v2.output=3") == 20 * 3


def test_a_key_within_a_key_of_a_class() -> None:
    document: dict[str, Any] = {"workload": {"generate": {"classes": [{"name": "a"}, {"name": "a.b", "prompt": {}}]}}}
    places = override(document, {f"{CLASSES}.a.b.prompt.min": 6, f"{CLASSES}.a.weight": 2})
    assert document["workload"]["generate"]["classes"] == [
        {"name": "a", "weight": 2},
        {"name": "a.b", "prompt": {"min": 6}},
    ]
    assert list(places.values()) == [f"{CLASSES}[1].prompt.min", f"{CLASSES}[0].weight"]


def test_a_class_in_a_sweep_and_a_comparison(scenario: str, tmp_path: Path) -> None:
    output = str(tmp_path / "o.parquet")
    key = f"{CLASSES}.chat.output"
    assert call("sweep", scenario, "--grid", f"{key}=4,9", "--jobs", "1", "-o", output).exit_code == 0
    rows = pq.read_table(output).to_pylist()
    assert [row[key] for row in rows] == [4, 9]
    one, other = (row["output_tokens"] for row in rows)
    assert (other - one) % 5 == 0 and other > one
    compared = call("compare", scenario, "--set", f"{key}=4,9", "--json")
    tokens = [one["summary"]["throughput"]["output_tokens"] for one in json.loads(compared.stdout)["variants"]]
    assert tokens == [one, other]


@pytest.mark.parametrize(
    ("key", "said"),
    [
        (f"{CLASSES}.chta.weight", "no class has the name 'chta' (did you mean 'chat'?)"),
        (f"{CLASSES}.chta.prompt.min", "no class has the name 'chta' (did you mean 'chat'?)"),
        (f"{CLASSES}.rag.v3.weight", "no class has the name 'rag.v3' (did you mean 'rag.v2'?)"),
        (f"{CLASSES}.zzz.prompt.min", "no class has the name 'zzz'"),
        (f"{CLASSES}.chat.weigth", "unknown key (did you mean 'weight'?)"),
        (f"{CLASSES}.chat.prompt.mn", "unknown key (did you mean 'min'?)"),
        (f"{CLASSES}.chat.weight", "-1: must be above 0.0"),
        ("workload.requests.D.prompt", "no request has the id 'D'"),
    ],
)
def test_a_wrong_name_or_key_is_one_line(scenario: str, key: str, said: str) -> None:
    sweep = ("sweep", scenario, "--grid", f"{key}=-1", "-o", "none.parquet")
    for option, words in (("--set", ("run", scenario, "--set", f"{key}=-1")), ("--grid", sweep)):
        error = call(*words).exception
        assert isinstance(error, InputError) and str(error) == f"{option} {key}: {said}"
