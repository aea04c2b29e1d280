"""Recordings, made here out of simulated traces: `conform` finds nothing in a true one and something in any other."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from batchlab.cli.commands import cli
from batchlab.conform.cases import case_files
from batchlab.conform.recorded import run_recording
from batchlab.errors import BatchlabError, InputError
from batchlab.explain import explain
from batchlab.export.follow import follow
from batchlab.export.spans import Mark, Span, Spans
from batchlab.metrics.fold import Summary
from batchlab.scenario import build
from batchlab.simulation import simulate
from batchlab.trace.encode import decode
from batchlab.trace.verify import verify
from batchlab.trace.write import TraceWriter
from batchlab.validate.traced import traced

RECORDED = {"epoch": 1_700_000_000_000_000_000, "monotonic": 5}
Line = dict[str, Any]


def simulated(path: Path, seed: int) -> list[Line]:
    """The lines of a run of the policy vllm on a random load, as a recorder would have written them."""
    rng = random.Random(seed)
    requests: list[Line] = []
    for number in range(rng.randint(5, 25)):
        request: Line = {"id": f"r{number}", "arrival": rng.randrange(4000), "priority": rng.randrange(3)}
        request |= {"prompt": rng.randint(1, 90), "output": rng.randint(1, 40)}
        request["max_tokens"] = request["output"] + rng.choice((0, 9))
        if rng.random() < 0.2:
            request["cancel_at"] = request["arrival"] + rng.randrange(3000)
        requests.append(request)
    engine = {"policy": "vllm", "max_num_seqs": 6, "max_num_batched_tokens": 48, "num_gpu_blocks": 21, "block_size": 8}
    engine |= {"max_model_len": 160, "scheduling_policy": rng.choice(("fcfs", "priority"))}
    engine["long_prefill_token_threshold"] = rng.choice((0, 20))
    cost = {"model": "linear", "unit": "ns", "per_iteration": 40, "prefill_token": 2}
    run = build({"engine": engine, "cost": cost, "workload": {"requests": requests}}).runs[0]
    with open(path, "w") as file:
        summary = Summary()
        simulate(run, [summary, TraceWriter(file, summary)])
    return as_recording([json.loads(line) for line in path.read_text().splitlines()])


def as_recording(lines: list[Line]) -> list[Line]:
    """As a recorder would have written it: requests as they come, without what only their end tells; no end line."""
    header, *iterations, _ = lines
    requests = {request["id"]: request for request in header.pop("requests")}
    header |= {"recorded": RECORDED, "max_tokens_rule": "given", "source": {**header["source"], "requests": None}}
    header["clock"]["cost"] = {"model": "recorded"}
    found = [header]
    for line in iterations:
        for id in line["arrived"]:
            found.append({"type": "request", **requests[id]})
            del found[-1]["output"]
            found[-1].pop("cancel_at", None)
        for entry in line.get("dropped", ()):
            entry["at"] = line["start"]
        found.append(line)
    return found


def write(path: Path, lines: list[Line]) -> Path:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("seed", range(40))
def test_a_true_recording_verifies_and_conforms_and_any_other_does_not(tmp_path: Path, seed: int) -> None:
    lines = simulated(tmp_path / "simulated.jsonl", seed)
    path = write(tmp_path / "recorded.jsonl", lines)
    report = verify(path)
    assert report.ok, report.violations[0]
    detail, difference = run_recording(path)
    assert difference is None, str(difference)
    iterations = [line for line in lines if line["type"] == "iteration"]
    assert detail.startswith(f"{len(iterations)} steps, ")
    rng = random.Random(seed)
    for field in ("scheduled", "admitted", "active", "kv"):
        place = rng.choice([n for n, line in enumerate(lines) if line.get(field)])
        changed = json.loads(json.dumps(lines))
        at = changed[place]
        if field == "scheduled":
            at[field][0][2] += 1
        elif field == "kv":
            at[field]["free"] += 1
        else:
            at[field].pop()
        try:
            _, difference = run_recording(write(tmp_path / "changed.jsonl", changed))
        except InputError:
            continue  # it contradicts itself
        assert difference is not None and difference.place.startswith("iteration ")


@pytest.mark.parametrize("seed", range(5))
def test_a_recording_that_breaks_off_anywhere_is_read_up_to_there(tmp_path: Path, seed: int) -> None:
    data = write(tmp_path / "whole.jsonl", simulated(tmp_path / "simulated.jsonl", seed)).read_bytes()
    rng = random.Random(seed)
    cut = tmp_path / "cut.jsonl"
    for size in [data.index(b"\n") + 1, *(rng.randrange(data.index(b"\n") + 2, len(data)) for _ in range(12))]:
        cut.write_bytes(data[:size])
        whole = data[:size].count(b"\n")
        report = verify(cut)
        assert report.ok, report.violations[0]
        assert data[:size].endswith(b"\n") or (report.note or "").startswith(f"line {whole + 1} is cut off")
        assert run_recording(cut)[1] is None
        assert explain(cut).end.iterations == report.iterations


def test_a_client_that_leaves_while_the_step_is_under_way(tmp_path: Path) -> None:
    """By hand: A and B are in one step, B's client leaves meanwhile; B's token goes to nobody, its block is free."""
    kv = {"num_gpu_blocks": 4, "block_size": 8, "enable_prefix_caching": False, "max_model_len": 32}
    header: Line = {"type": "header", "schema": 1, "batchlab": "0", "engine": "vllm", "rules": "vLLM 0.32.0"}
    header |= {"settings": {}, "limits": {"max_num_seqs": 2, "max_num_batched_tokens": 16, "max_queue": None, **kv}}
    header |= {"clock": {"unit": "ns", "cost": {"model": "recorded"}, "idle": "jump"}, "max_iterations": None}
    header |= {"max_tokens_rule": "given", "source": {"name": None, "sha256": None, "requests": None}}
    header |= {"deadlines": "keep", "retry": None, "steps_in_flight": 1}
    header |= {"recorded": RECORDED, "queue": {"order": "arrival", "aging": None, "shed": False}}
    request: Line = {"type": "request", "arrival": 1, "prompt": 4, "max_tokens": 9, "priority": 0}
    line: Line = {"type": "iteration", "iteration": 0, "start": 10, "end": 20, "arrived": ["A", "B"], "rejected": []}
    line |= {"preempted": [], "admitted": ["A", "B"], "scheduled": [["A", "prefill", 4], ["B", "prefill", 4]]}
    line |= {"cached": [["A", 0], ["B", 0]], "kv": {"free": 2, "free_after": 3, "moved": 0}, "unused": 8}
    line |= {"prefill_done": ["A"], "first_token": ["A"], "completed": [], "queue": [], "active": ["A"], "idle": None}
    line |= {"discarded": ["B"]}
    line["dropped"] = [{"id": "B", "result": "cancelled", "reason": "by its client", "at": 15}]
    last = {**line, "iteration": 1, "start": 20, "end": 25, "arrived": [], "admitted": [], "cached": [], "unused": 15}
    last |= {"scheduled": [["A", "decode", 1]], "prefill_done": [], "first_token": [], "completed": ["A"]}
    last |= {"active": [], "kv": {"free": 3, "free_after": 4, "moved": 0}}
    del last["dropped"], last["discarded"]
    lines = [header, {**request, "id": "A"}, {**request, "id": "B"}, line, last]
    path = write(tmp_path / "late.jsonl", lines)
    assert verify(path).ok and verify(path).note is None
    assert run_recording(path) == ("2 steps, 2 requests, 0 preemptions, 1 cancelled", None)
    assert explain(path, ["B"]).life("B").end == 20
    told: list[Span | Mark] = []
    follow(path, [Spans(told.append)])
    assert [item for item in told if item.id == "B"] == [
        Mark("B", "arrived", 1, 0),
        Span("B", "waiting", 1, 10, 0, -1),
        Span("B", "prefill", 10, 20, 0, 0, 4),
        Mark("B", "dropped", 20, 0, "cancelled: by its client"),
    ]
    summary = Summary()
    for entry in lines:
        summary(decode(json.loads(json.dumps(entry))))
    assert [(r.result, r.request.output, r.emitted) for r in summary.results] == [
        ("completed", 2, 2),
        ("cancelled", 0, 0),
    ]

    for change, rule in (
        ({"discarded": []}, "discarded"),
        ({"dropped": [{**line["dropped"][0], "at": 10}]}, "lifecycle"),
        ({"dropped": [{**line["dropped"][0], "at": 21}]}, "dropped"),
        ({"dropped": [{k: v for k, v in line["dropped"][0].items() if k != "at"}]}, "dropped"),
        ({"kv": {"free": 2, "free_after": 2, "moved": 0}}, "kv"),
        ({"active": ["A", "B"]}, "active"),
        ({"first_token": ["A", "B"]}, "first-token"),
    ):
        broken = verify(write(tmp_path / "broken.jsonl", [*lines[:3], {**line, **change}, last]))
        assert rule in {violation.rule for violation in broken.violations}, change
    assert not verify(write(path, [header, *lines[1:4], {**last, "completed": []}, {**last, "iteration": 2}])).ok


def test_a_recording_is_not_said_to_be_cut(tmp_path: Path) -> None:
    recording = write(tmp_path / "r.jsonl", simulated(tmp_path / "s.jsonl", 0))
    page, chrome = tmp_path / "r.html", tmp_path / "r.json"
    for arguments in (["show"], ["explain"], ["export", "chrome", "-o", str(chrome)], ["report", "-o", str(page)]):
        done = CliRunner().invoke(cli, [arguments[0], str(recording), *arguments[1:]])
        assert done.exit_code == 0 and "no end line" not in done.output, (arguments, done.output)
    assert "the recording ends after" in CliRunner().invoke(cli, ["show", str(recording)]).output
    assert "the recording ends" in page.read_text() and "no end line" not in page.read_text()


def test_what_only_a_recording_may_leave_open(tmp_path: Path) -> None:
    lines = simulated(tmp_path / "simulated.jsonl", 1)
    del lines[0]["recorded"]
    report = verify(write(tmp_path / "not.jsonl", lines))
    assert {"request", "complete"} <= {violation.rule for violation in report.violations}
    with pytest.raises(InputError, match="a recording of an engine expected"):
        run_recording(tmp_path / "not.jsonl")


def test_conform_takes_recordings_beside_cases(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    lines = simulated(tmp_path / "simulated.jsonl", 2)
    write(folder / "true.jsonl", lines)
    wrong = json.loads(json.dumps(lines))
    wrong[0]["limits"]["max_num_seqs"] = 1
    write(folder / "wrong.jsonl", wrong)
    assert [path.name for path in case_files([folder])] == ["true.jsonl", "wrong.jsonl"]
    result = CliRunner().invoke(cli, ["conform", str(folder)])
    assert result.exit_code == 1
    true, other, _ = result.stdout.splitlines()
    assert true.startswith("true: pass (") and other.startswith("wrong: FAIL iteration ")
    verified = CliRunner().invoke(cli, ["verify", str(folder / "true.jsonl"), "--json"])
    assert json.loads(verified.stdout)["ok"] is True and verified.exit_code == 0
    (folder / "true.jsonl").write_text(json.dumps({**lines[0], "engine": "vlm"}) + "\n")
    with pytest.raises(InputError, match="did you mean 'vllm'"):
        run_recording(folder / "true.jsonl")


DOOR = """
from batchlab.policies.vllm import Vllm

class Refuses(Vllm):
    def on_arrival(self, seq, view, batch):
        if seq.prompt_tokens % 3 == 0:
            batch.reject(seq, "{file}:{name}: whatever was said")
        else:
            super().on_arrival(seq, view, batch)

class Raises(Vllm):
    def on_arrival(self, seq, view, batch):
        assert seq.prompt_tokens % 3, "odd prompt"
        super().on_arrival(seq, view, batch)

class NoKey(Vllm):
    def __init__(self):
        super().__init__()
        self.queue_key = lambda seq: seq.arrival if seq.prompt_tokens % 3 else None

class Leaves(Vllm):
    def on_arrival(self, seq, view, batch):
        if seq.prompt_tokens % 3:
            super().on_arrival(seq, view, batch)

class Late(Vllm):
    def on_arrival(self, seq, view, batch):
        super().on_arrival(seq, view, batch)
        assert seq.prompt_tokens % 3, "odd prompt"

class Both(Vllm):
    def on_arrival(self, seq, view, batch):
        if seq.prompt_tokens % 3 == 0:
            batch.reject(seq, "no")
            raise RuntimeError("and then this")
        super().on_arrival(seq, view, batch)

class Admits(Vllm):
    def on_arrival(self, seq, view, batch):
        super().on_arrival(seq, view, batch)
        if seq.prompt_tokens % 3 == 0:
            batch.admit(seq)

class NaN(NoKey):
    def __init__(self):
        super().__init__()
        self.queue_key = lambda seq: (seq.arrival, 0 if seq.prompt_tokens % 3 else float("nan"))
"""


def refused_by(tmp_path: Path, name: str) -> tuple[list[Line], int]:
    """Made with a door that refuses on purpose whom the scheduler inside vLLM does where the policy raises."""
    file = tmp_path / "door.py"
    file.write_text(DOOR.replace("{file}", str(file)).replace("{name}", name))
    engine = {"policy": f"{file}:Refuses", "max_num_seqs": 3, "max_num_batched_tokens": 32}
    rng = random.Random(3)
    requests = [{"id": f"r{k}", "arrival": 90 * k, "prompt": rng.randint(1, 60), "output": 4} for k in range(30)]
    cost = {"model": "linear", "unit": "ns", "per_iteration": 40, "prefill_token": 2}
    run = build({"engine": engine, "cost": cost, "workload": {"requests": requests}}).runs[0]
    with open(tmp_path / "made.jsonl", "w") as trace:
        summary = Summary()
        simulate(run, [summary, TraceWriter(trace, summary)])
    lines = as_recording([json.loads(line) for line in (tmp_path / "made.jsonl").read_text().splitlines()])
    lines[0] |= {"engine": f"{file}:{name}"}
    return lines, sum(request["prompt"] % 3 == 0 for request in requests)


@pytest.mark.parametrize("name", ["Leaves", "Late", "Both"])
def test_a_door_that_breaks_its_contract_is_refused_again(tmp_path: Path, name: str) -> None:
    lines, refused = refused_by(tmp_path, name)
    detail, difference = run_recording(write(tmp_path / "true.jsonl", lines))
    assert difference is None and detail.endswith(f", {refused} rejected") and refused


def test_a_door_that_took_a_seat_cannot_be_compared(tmp_path: Path) -> None:
    """Inside vLLM that request is refused; here the seat is taken by then."""
    lines, _ = refused_by(tmp_path, "Admits")
    with pytest.raises(BatchlabError, match=r"only enqueue or reject the newcomer, so no more can be compared$"):
        run_recording(write(tmp_path / "true.jsonl", lines))


VICTIMS = """
from batchlab.policies.vllm import Vllm

class {name}(Vllm):
    def __init__(self, scheduling_policy="fcfs", long_prefill_token_threshold=0):
        super().__init__(long_prefill_token_threshold, scheduling_policy=scheduling_policy)
        self._victim = lambda running: {rule}
"""


@pytest.mark.parametrize("seed", [0, 1, 3, 4, 5])
@pytest.mark.parametrize("rule", ["1 // 0", "None", "running[0] if running[0].prompt_tokens > 9999 else running[99]"])
def test_where_a_victim_rule_fails_the_recording_has_vllms_own_victim(tmp_path: Path, seed: int, rule: str) -> None:
    lines = simulated(tmp_path / "simulated.jsonl", seed)
    file = tmp_path / "mine.py"
    file.write_text(VICTIMS.format(name="Mine", rule=rule))
    path = write(tmp_path / "recorded.jsonl", [lines[0] | {"engine": f"{file}:Mine"}, *lines[1:]])
    detail, difference = run_recording(path)
    assert difference is None and sum(len(line.get("preempted", ())) for line in lines) > 0, detail
    file.write_text(VICTIMS.format(name="Mine", rule="running[0]"))
    assert run_recording(path)[1] is not None


def test_an_error_within_the_plan_is_not_called_a_refusal(tmp_path: Path) -> None:
    lines = simulated(tmp_path / "simulated.jsonl", 0)
    file = tmp_path / "mine.py"
    file.write_text("class Mine:\n    def plan(self, view, batch):\n        raise RuntimeError('boom')\n")
    path = write(tmp_path / "recorded.jsonl", [lines[0] | {"engine": f"{file}:Mine", "settings": {}}, *lines[1:]])
    with pytest.raises(BatchlabError, match=r"iteration 0: the policy raised RuntimeError: boom, so no more can"):
        run_recording(path)


def test_a_policy_by_a_relative_path_is_looked_for_where_the_run_was_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = simulated(tmp_path / "simulated.jsonl", 0)
    (tmp_path / "mine.py").write_text(VICTIMS.format(name="Mine", rule="running[-1]"))
    path = write(tmp_path / "recorded.jsonl", [lines[0] | {"engine": "mine.py:Mine"}, *lines[1:]])
    monkeypatch.chdir(tmp_path)
    run_recording(path)
    monkeypatch.chdir("/")
    said = r"line 1, engine: 'mine.py': no such file here; the trace names its policy by this path, from the folder in"
    done = CliRunner().invoke(cli, ["conform", str(path)])
    assert str(done.exception).startswith(f"{path}: ") and said in str(done.exception)
    with pytest.raises(InputError) as refused:
        traced(path)
    assert str(refused.value) == str(done.exception)


def test_a_recording_of_nothing_says_so(tmp_path: Path) -> None:
    header = simulated(tmp_path / "simulated.jsonl", 0)[0]
    path = write(tmp_path / "none.jsonl", [header])
    done = CliRunner().invoke(cli, ["conform", str(path)])
    assert done.exit_code == 0
    assert done.stdout.startswith("none: pass (nothing was recorded, so nothing differs)\n")
    done = CliRunner().invoke(cli, ["conform", str(path), "--json"])
    assert "nothing was recorded" in json.loads(done.stdout)["cases"][0]["detail"]
    done = CliRunner().invoke(cli, ["verify", str(path)])
    assert done.exit_code == 0
    assert done.stdout.endswith(": every rule holds (nothing was recorded, so nothing is broken)\n")


def test_an_empty_file_is_called_empty(tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").write_text("")
    for command in ("conform", "explain"):
        done = CliRunner().invoke(cli, [command, str(tmp_path / "empty.jsonl")])
        assert isinstance(done.exception, InputError)
        assert str(done.exception).endswith("a trace, but the file is empty"), command


@pytest.mark.parametrize("name", ["Raises", "NoKey", "NaN"])
def test_what_an_error_of_the_policy_refused_is_refused_again(tmp_path: Path, name: str) -> None:
    lines, refused = refused_by(tmp_path, name)
    detail, difference = run_recording(write(tmp_path / "true.jsonl", lines))
    assert difference is None and detail.endswith(f", {refused} rejected") and refused
    for line in lines:
        for entry in line.get("rejected", ()):
            entry["reason"] = "a door's own words"
    other = write(tmp_path / "other.jsonl", lines)
    if name == "Raises":
        with pytest.raises(BatchlabError, match=r"Raises: iteration .*the policy raised .*no refusal for that"):
            run_recording(other)
    else:  # alone in the queue such a key compares with nothing: the request is let in, and that is a difference
        _, difference = run_recording(other)
        assert difference is not None and difference.place.endswith("rejected")
