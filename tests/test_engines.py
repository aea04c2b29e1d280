"""The list of engines and the page made from it."""

import inspect
import json
import sys
from pathlib import Path

from click.testing import CliRunner

from batchlab import policies
from batchlab.cli.commands import cli

PAGE = Path(__file__).parents[1] / "docs" / "engines.md"


def test_the_page_is_what_the_command_makes() -> None:
    assert PAGE.read_text(encoding="utf-8") == CliRunner().invoke(cli, ["engines", "--markdown"]).output


def test_every_engine_is_listed_with_rules_and_settings() -> None:
    listed = json.loads(CliRunner().invoke(cli, ["engines", "--json"]).output)["engines"]
    assert [entry["name"] for entry in listed] == policies.names()
    for entry in listed:
        policy = policies.find(entry["name"])
        assert entry["rules"] == policy.rules != "custom"
        assert entry["about"] and entry["settings"]
        assert inspect.getdoc(sys.modules[policy.__module__])


def test_the_rules_of_vllm_are_numbered_without_a_gap() -> None:
    text = inspect.getdoc(sys.modules[policies.find("vllm").__module__]) or ""
    numbers = [int(line.split(".")[0]) for line in text.splitlines() if line.split(".")[0].isdigit()]
    assert numbers == list(range(1, 24))
