"""Reports for the tests, each written once a session."""

import json
from pathlib import Path

import pytest
from test_explain_cli import command

EXAMPLES = Path(__file__).parents[1] / "examples"

MANY = """
[engine]
policy = "vllm"
max_num_seqs = 512
max_num_batched_tokens = 16384
[cost]
model = "linear"
unit = "ns"
per_iteration = 10_000_000
[workload.generate]
num_prompts = 100_000
seed = 1
arrivals = "poisson"
request_rate = 12000
prompt = { distribution = "uniform", min = 1, max = 50 }
output = { distribution = "uniform", min = 1, max = 4 }
"""


PLANNED = """
[engine]
policy = "vllm"
max_num_seqs = 8
max_num_batched_tokens = 64
num_gpu_blocks = 40
[cost]
model = "linear"
unit = "ns"
per_iteration = 5_000_000
prefill_token = 50_000
[workload.generate]
num_prompts = 60
seed = 3
arrivals = "poisson"
request_rate = 40
prompt = { distribution = "uniform", min = 1, max = 100 }
output = { distribution = "uniform", min = 1, max = 20 }
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="session")
def small_report(folder: Path) -> Path:
    page = folder / "small.html"
    assert command("report", str(EXAMPLES / "priority-preemption.toml"), "-o", str(page)).returncode == 0
    return page


HOSTILE = [
    "<script>window.hacked = 1</script>",
    "</script><script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    '<a href="https://x.example">b</a>',
    "<!-- <script>",
    "%{x}{{ 7 * 7 }}${7*7}$x^2$",
    "two\nlines\r\n\u2028\u2029",
    "\u202eright to left",
    "😀👩\u200d👩\u200d👧 中文 \u202e",
    "&lt;b&gt; <b>bold</b>",
    "'",
    "x" * 10_000,
]


@pytest.fixture(scope="session")
def hostile_report(folder: Path) -> Path:
    """Everything that a user may name has such a name."""
    requests = [{"id": id, "arrival": n // 3, "prompt": 1 + n % 4, "output": 2} for n, id in enumerate(HOSTILE)]
    lines = ['title = "<script>window.hacked = 1</script>"', "[engine]", 'policy = "decode-first"', "max_num_seqs = 2"]
    lines += [
        "max_queue = 4",
        "max_num_batched_tokens = 4",
        "prefill_chunk = 3",
        "[cost]",
        'model = "unit"',
        "[workload]",
    ]
    listed = ", ".join(
        "{" + ", ".join(f"{k} = {json.dumps(v, ensure_ascii=False)}" for k, v in one.items()) + "}" for one in requests
    )
    scenario = folder / "'><svg onload=hacked(1)>.toml"
    scenario.write_text("\n".join([*lines, f"requests = [{listed}]", ""]), encoding="utf-8")
    trace, page = folder / "<img src=x onerror=alert(1)>.jsonl", folder / "hostile.html"
    assert command("run", str(scenario), "--trace", str(trace)).returncode in (0, 1)
    done = command("report", str(trace), str(scenario), "-o", str(page))
    assert done.returncode == 0, done.stderr
    return page


@pytest.fixture(scope="session")
def planned_report(folder: Path) -> Path:
    """A sweep, a tuning, a capacity and a comparison, on one page."""
    scenario, table, saved, page = (folder / name for name in ("plan.toml", "s.parquet", "c.json", "planned.html"))
    tuned = folder / "tuned.parquet"
    scenario.write_text(PLANNED, encoding="utf-8")
    grid = ("--grid", "engine.max_num_batched_tokens=64,256", "--grid", "workload.generate.request_rate=40,400")
    slo = "ttft:p99<=500ms,itl:p99<=50ms"
    assert command("sweep", str(scenario), *grid, "--slo", slo, "-o", str(table), "--jobs", "1").returncode == 0
    found = command(
        "capacity", str(scenario), "--slo", slo, "--seeds", "1", "--jobs", "1", "--gpu-price", "2.5", "--json"
    )
    saved.write_text(found.stdout, encoding="utf-8")
    space = ("--space", "engine.max_num_seqs=2,8,16", "--maximize", "throughput", "--jobs", "1")
    assert command("tune", str(scenario), "--slo", slo, *space, "-o", str(tuned)).returncode == 0
    several = ("--set", "engine.max_num_batched_tokens=64,256", "--slo", slo, "--goodput", "ttft:100")
    done = command("report", str(scenario), str(table), str(tuned), str(saved), *several, "-o", str(page))
    assert done.returncode in (0, 1), done.stderr
    return page


@pytest.fixture(scope="session")
def big_report(folder: Path) -> Path:
    scenario, page = folder / "many.toml", folder / "many.html"
    scenario.write_text(MANY, encoding="utf-8")
    done = command("report", str(scenario), "-o", str(page))
    assert done.returncode == 0, done.stderr
    return page
