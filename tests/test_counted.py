"""How many of what: one has no plural; and from when to when, in one unit."""

import pytest
from click.testing import CliRunner

from batchlab.cli.commands import cli
from batchlab.cli.large import span
from batchlab.units import counted, were


@pytest.mark.parametrize(
    ("count", "told"), [(0, "0 runs were"), (1, "1 run was"), (2, "2 runs were"), (1200, "1,200 runs were")]
)
def test_one_has_no_plural(count, told):
    assert f"{counted(count, 'run')} {were(count)}" == told


@pytest.mark.parametrize(
    ("start", "end", "told"),
    [
        (0, 108_400_000_000, "0.0 to 108.4 s"),
        (7_963_885_000, 84_700_000_000, "8.0 to 84.7 s"),
        (1_500_000, 9_999_000_000, "1.500 to 9,999.000 ms"),
    ],
)
def test_a_stretch_of_time_has_one_unit(start, end, told):
    assert span(start, end, "ns") == told


def test_another_clock_keeps_its_unit():
    assert span(0, 1, "iteration") == "0 to 1 iteration"


def test_a_single_request_is_one_request(tmp_path):
    path, trace = tmp_path / "s.toml", tmp_path / "t.jsonl"
    path.write_text(
        '[engine]\npolicy = "vllm"\nmax_num_seqs = 1\nmax_num_batched_tokens = 8\n[cost]\nmodel = "linear"\n'
        'unit = "ns"\nper_iteration = 1000\n[[workload.requests]]\nid = "A"\narrival = 0\nprompt = 4\noutput = 1\n'
    )
    ran = CliRunner().invoke(cli, ["run", str(path), "--trace", str(trace)])
    assert "after 1 iteration, at" in ran.stdout
    assert "1 iteration, 1 request: every rule holds" in CliRunner().invoke(cli, ["verify", str(trace)]).stdout
    assert "1 request, 1 iteration" in CliRunner().invoke(cli, ["explain", str(trace)]).stdout
