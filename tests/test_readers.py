"""Workload files: what is read is exact, and what is wrong is named with its line, column, value and right form."""

import gzip
import io
import itertools
import json
import random
from pathlib import Path

import pytest

from batchlab.clients import fast_csv, readers
from batchlab.clients.formats import AZURE, MOONCAKE
from batchlab.clients.layout import Layout
from batchlab.clients.request import Request
from batchlab.errors import InputError

pytestmark = pytest.mark.once

TRACES = Path(__file__).resolve().parents[2] / "shared" / "traces"
NAMES = {"arrival": "at", "prompt": "in", "output": "out"}
ALL = {**NAMES, "id": "name", "max_tokens": "most", "priority": "rank"}
AZURE_HEADER = "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
needs_traces = pytest.mark.skipif(not TRACES.exists(), reason="the public traces are not here")


def read(tmp_path, content, *, names=NAMES, unit="s", reader=readers.read_csv, **more):
    path = tmp_path / "w"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    kind = "key" if reader is readers.read_jsonl else "column"
    return reader(path, Layout(names, unit, kind=kind, **more))


def refusal(tmp_path, content, **more):
    with pytest.raises(InputError) as caught:
        read(tmp_path, content, **more)
    text = str(caught.value)
    assert text.startswith(str(tmp_path / "w")) and "\n" not in text
    return text.removeprefix(f"{tmp_path / 'w'}: ")


# What is read


def test_azure_times_are_exact(tmp_path):
    """Rows 1, 2, 9 and 11 ms into a second, with 7 digits."""
    rows = [f"2023-11-16 18:15:46.{ms:03}0000,{ms},{ms + 1}\r\n" for ms in (1, 2, 9, 11)]
    columns = read(tmp_path, AZURE_HEADER + "".join(rows), names=AZURE, unit="stamp")
    assert columns.field("arrival") == [0, 1_000_000, 8_000_000, 10_000_000]
    assert columns[3] == Request("3", 10_000_000, 11, 12, 12)


def test_azure_digits_dates_and_zones(tmp_path):
    stamps = [
        "2023-12-31 23:59:59.9999999",
        "2024-01-01 00:00:00.0000001",
        "2024-02-29T00:00:00",
        "2024-03-01 00:00:00.000000001+00:00",
    ]
    columns = read(tmp_path, AZURE_HEADER + "".join(f"{s},1,1\n" for s in stamps), names=AZURE, unit="stamp")
    day = 86_400 * 10**9
    assert columns.field("arrival") == [0, 200, 59 * day + 100, 60 * day + 101]


@pytest.mark.parametrize(
    ("unit", "cells", "expected"),
    [
        ("s", ["0", "0.001", "0.3", "1.123456789", "2.5000000000000"], [0, 10**6, 3 * 10**8, 1123456789, 25 * 10**8]),
        ("ms", ["10", "10.000001", "11"], [0, 1, 10**6]),
        ("us", ["7.001", "8"], [0, 999]),
        ("ns", ["1700000000123456789", "1700000000123456790"], [0, 1]),
        ("unit", ["3", "3", "7"], [3, 3, 7]),
    ],
)
def test_times_in_every_unit(tmp_path, unit, cells, expected):
    text = "at,in,out\n" + "".join(f"{cell},1,1\n" for cell in cells)
    assert read(tmp_path, text, unit=unit).field("arrival") == expected
    lines = "".join(f'{{"at": {cell}, "in": 1, "out": 1}}\n' for cell in cells)
    assert read(tmp_path, lines, unit=unit, reader=readers.read_jsonl).field("arrival") == expected


def test_every_column(tmp_path):
    text = "most,name,in,junk,out,rank,at\n9,é,5,,4,-2,1\n4,b c,6,x,4,7,2\n"
    expected = [Request("é", 0, 5, 4, 9, -2), Request("b c", 10**9, 6, 4, 4, 7)]
    assert list(read(tmp_path, text, names=ALL)) == expected
    lines = [
        {"at": 1, "in": 5, "out": 4, "most": 9, "rank": -2, "name": "é"},
        {"at": 2, "in": 6, "out": 4, "most": 4, "rank": 7, "name": "b c"},
    ]
    text = "\n".join(map(json.dumps, lines))
    assert list(read(tmp_path, text, names=ALL, reader=readers.read_jsonl)) == expected


def test_the_quick_and_the_thorough_reader_agree(tmp_path):
    rng = random.Random(1)
    for case in range(60):
        names = rng.choice([NAMES, ALL])
        unit = rng.choice(["s", "ms", "us", "ns", "unit"])
        sort = rng.random() < 0.5
        times = [rng.randrange(10 ** rng.randint(1, 9)) for _ in range(rng.randint(1, 40))]
        digits = {"s": 9, "ms": 6, "us": 3}.get(unit, 0)
        rows = ["at,in,out,name,most,rank"]
        for i, time in enumerate(times if sort else sorted(times)):
            cell = f"{time}.{rng.randrange(10**digits):0{digits}}" if digits and rng.random() < 0.5 and sort else time
            out = rng.randint(1, 99)
            rows.append(f"{cell},{rng.randint(1, 2**40)},{out},r{i},{out + rng.randint(0, 3)},{rng.randint(0, 9)}")
        data = (rng.choice(["\n", "\r\n"]).join(rows) + rng.choice(["", "\n"])).encode()
        layout = Layout(names, unit, sort=sort)
        quick = fast_csv.read(Path("w.csv"), io.BytesIO(data), layout)
        assert quick is not None, (case, data)
        assert list(quick) == list(readers.read_thoroughly(Path("x"), io.BytesIO(data), layout))


@pytest.mark.parametrize(
    "cell", ["5", "05", "1e3", "NaN", "", " 1", "1 ", "+1", "0x1A", "1_0", "٣", "2.0", "-1", "0", "1,0"]
)
@pytest.mark.parametrize("column", ["at", "in"])
def test_the_quick_reader_never_takes_what_the_thorough_one_refuses(column, cell):
    row = {"at": "1", "in": "1", "out": "1", column: cell}
    data = "at,in,out\n" + ",".join(row.values()) + "\n"
    quick = fast_csv.read(Path("w.csv"), io.BytesIO(data.encode()), Layout(NAMES, "s"))
    if quick is not None:
        assert list(quick) == list(readers.read_thoroughly(Path("x"), io.BytesIO(data.encode()), Layout(NAMES, "s")))


@pytest.mark.parametrize(
    "stamp", ["2023-02-29 00:00:00", "2023-01-01 24:00:00", "2023-01-01 23:59:60", "0001-01-01 00:00:00"]
)
def test_dates_that_are_none(tmp_path, stamp):
    data = f"{AZURE_HEADER}{stamp},1,1\n2023-03-01 00:00:00,1,1\n"
    assert fast_csv.read(Path("w.csv"), io.BytesIO(data.encode()), Layout(AZURE, "stamp")) is None
    assert refusal(tmp_path, data, names=AZURE, unit="stamp").startswith("line ")


def test_sorting_is_stable_and_keeps_ids(tmp_path):
    text = "at,in,out\n2,1,1\n1,2,1\n2,3,1\n1,4,1\n"
    found = read(tmp_path, text, sort=True)
    assert [(r.id, r.arrival, r.prompt) for r in found] == [
        ("1", 0, 2),
        ("3", 0, 4),
        ("0", 10**9, 1),
        ("2", 10**9, 3),
    ]
    assert [r.id for r in read(tmp_path, text, sort=True, limit=2)] == ["1", "0"]


def test_limit_reads_no_further(tmp_path):
    text = "at,in,out\n1,1,1\n2,2,2\nnonsense\n"
    assert len(read(tmp_path, text, limit=2)) == 2
    assert len(read(tmp_path, text.replace("2,2,2", '"2","2",2'), limit=2)) == 2
    lines = '{"at": 1, "in": 1, "out": 1}\nnonsense\n'
    assert len(read(tmp_path, lines, limit=1, reader=readers.read_jsonl)) == 1
    assert len(read(tmp_path, "at,in,out\n1,1,1\n", limit=10)) == 1


@pytest.mark.parametrize("reader", [readers.read_csv, readers.read_jsonl])
def test_gzip_and_a_byte_order_mark(tmp_path, reader):
    text = "at,in,out\n1,2,3\n" if reader is readers.read_csv else '{"at": 1, "in": 2, "out": 3}\n'
    for data in (text.encode(), b"\xef\xbb\xbf" + text.encode()):
        for content in (data, gzip.compress(data), gzip.compress(data[:7]) + gzip.compress(data[7:])):
            assert list(read(tmp_path, content, reader=reader)) == [Request("0", 0, 2, 3, 3)]
    whole = gzip.compress(text.encode() * 500)
    assert "gzip" in refusal(tmp_path, whole[:-9], reader=reader)
    assert "gzip" in refusal(tmp_path, gzip.compress(text.encode())[:12], reader=reader)
    assert refusal(tmp_path, gzip.compress(b""), reader=reader).startswith("is empty")


def test_quotes_and_lines_within_cells(tmp_path):
    text = 'at,in,out,name\n1,1,1,"a, ""b""\nc"\n2,1,1,d\n'
    assert [r.id for r in read(tmp_path, text, names={**NAMES, "id": "name"})] == ['a, "b"\nc', "d"]
    assert refusal(tmp_path, text + "3,x,1,e\n").startswith("line 5, column 'in': 'x'")
    assert "quote" in refusal(tmp_path, text + '3,1,1,"e\n')


# What is refused

CSV_TROUBLES = [
    ("", "is empty; a CSV file with a header line is needed"),
    ("at,in,out\n", "line 2: has a header line and no rows"),
    ("at,in,out", "line 2: has a header line and no rows"),
    (
        "at,inn,out\n1,2,3\n",
        "line 1: has no column 'in' (did you mean 'inn'?); it has: at, inn, out; asked for as 'prompt'",
    ),
    ("at;in;out\n1;2;3\n", "line 1: has no column 'at'; cells must be separated by commas"),
    ("at,in,in,out\n1,2,2,3\n", "line 1: 'in': stands twice among the column names"),
    ("at,in,out\n1,2,3\n1,2\n", "line 3: '1,2': 2 cells, but the header line names 3 columns"),
    ("at,in,out\n1,2,3\n1,2", "line 3: '1,2': 2 cells, but the header line names 3 columns (the last line, and it has"),
    ("at,in,out\n1,2,3,4\n1,2,3\n", "line 2: '1,2,3,4': 4 cells"),
    ("at,in,out\n1,2,3\n\n1,2,3\n", "line 3: a blank line"),
    ("at,in,out\n1,2,3\n\n", "line 3: a blank line"),
    ("at,in,out\n1,2,x\n", "line 2, column 'out': 'x': must be a whole number"),
    ("at,in,out\n1,2,\n", "line 2, column 'out': '': is empty; must be a whole number"),
    ("at,in,out\n,2,3\n", "line 2, column 'at': '': is empty; must be a time as a decimal number"),
    ("at,in,out\n1,2,0\n", "line 2, column 'out': '0': must be at least 1"),
    ("at,in,out\n1,-2,3\n", "line 2, column 'in': '-2': must not be negative"),
    ("at,in,out\n-1.5,2,3\n", "line 2, column 'at': '-1.5': must not be negative"),
    ("at,in,out\n1,2.0,3\n", "line 2, column 'in': '2.0': must be a whole number, without a fraction"),
    ("at,in,out\n1,1e3,3\n", "line 2, column 'in': '1e3': must be a whole number, written out without an exponent"),
    ("at,in,out\n1e-3,1,3\n", "line 2, column 'at': '1e-3': must be a time as a decimal number, written out"),
    ("at,in,out\n1,NaN,3\n", "line 2, column 'in': 'NaN': must be a whole number"),
    ("at,in,out\n1,2, 3\n", "line 2, column 'out': ' 3': must be a whole number, without spaces around it"),
    (f"at,in,out\n1,2,{2**63}\n", f"line 2, column 'out': '{2**63}': must be at most 2^40"),
    (f"at,in,out\n{2**63},2,1\n", f"line 2, column 'at': '{2**63}': must be at most 2^62 ns"),
    (f"at,in,out\n1,{'9' * 5000},1\n", "line 2, column 'in': '9999"),
    ("at,in,out\n1.0000000001,2,3\n", "line 2, column 'at': '1.0000000001': is finer than a nanosecond"),
    ("at,in,out\n1,2,3\n2,2,3\n1.5,2,3\n", "line 4, column 'at': '1.5': is earlier than line 3; rows must be in order"),
    (b"at,in,out\n1,2,3\n1,\xff,3\n", "line 3: b'\\xff': not UTF-8"),
    (b"at,in,out\n1,2,3\n1,\0,3\n", "line 3: not text: it has a NUL byte"),
    ("at,in,out\n1,2,3\n".encode("utf-16"), "is UTF-16 text"),
    (b"PAR1\x15\x04\x15", "is a Parquet file; a CSV file with a header line is needed"),
    (b"PK\x03\x04\x15", "is a zip archive"),
    ('{"at": 1, "in": 2, "out": 3}\n', 'line 1: \'{"at": 1'),
]


@pytest.mark.parametrize(("content", "expected"), CSV_TROUBLES)
def test_csv_troubles(tmp_path, content, expected):
    assert refusal(tmp_path, content).startswith(expected)
    if content and not str(content).startswith(("b'PAR1", "b'PK")):
        data = content if isinstance(content, bytes) else content.encode()
        assert refusal(tmp_path, gzip.compress(data)).startswith(expected)


JSONL_TROUBLES = [
    ("", "is empty; a JSON Lines file is needed"),
    ('{"at": 1, "inn": 2, "out": 3}\n', "line 1, key 'in': is missing (did you mean 'inn'?)"),
    ('{"at": 1, "in": 2, "out": 3}\n{"at": 1, "in": 2, "ou', 'line 2: \'{"at": 1, "in": 2, "ou\': not a JSON object'),
    ('{"at": 1, "in": 2, "out": 3}\n\n', "line 2: a blank line"),
    ("[1, 2, 3]\n", "line 1: [1, 2, 3]: must be a JSON object"),
    ("at,in,out\n1,2,3\n", "line 1: 'at,in,out': not a JSON object on one line"),
    ('{"at": 1, "in": 2.0, "out": 3}\n', "line 1, key 'in': 2.0: must be a whole number, without a fraction"),
    ('{"at": 1, "in": 1e3, "out": 3}\n', "line 1, key 'in': 1e3: must be a whole number, written out"),
    ('{"at": 1, "in": "2", "out": 3}\n', "line 1, key 'in': '2': must be a number, not a text"),
    ('{"at": "1", "in": 2, "out": 3}\n', "line 1, key 'at': '1': must be a number, not a text"),
    ('{"at": 1, "in": null, "out": 3}\n', "line 1, key 'in': must be a number, not null"),
    ('{"at": 1, "in": true, "out": 3}\n', "line 1, key 'in': True: must be a number"),
    (
        '{"at": 1, "in": NaN, "out": 3}\n',
        'line 1: \'{"at": 1, "in": NaN, "out": 3}\': not a JSON object on one line: NaN',
    ),
    ('{"at": 1, "in": 0, "out": 3}\n', "line 1, key 'in': 0: must be at least 1"),
    ('{"at": -1, "in": 1, "out": 3}\n', "line 1, key 'at': -1: must not be negative"),
    (f'{{"at": 1, "in": {2**63}, "out": 3}}\n', f"line 1, key 'in': {2**63}: must be at most 2^40"),
    ('{"at": 1, "in": %s, "out": 3}\n' % ("9" * 5000), "line 1: '{"),
    ('{"at": 0.1234567891, "in": 1, "out": 3}\n', "line 1, key 'at': 0.1234567891: is finer than a nanosecond"),
    ('{"at": 2, "in": 1, "out": 3}\n{"at": 1, "in": 1, "out": 3}\n', "line 2, key 'at': 1: is earlier than line 1"),
    ('{"at": 1, "at": 1, "in": 1, "out": 3}\n', "line 1: "),
    ("[" * 100_000, "line 1: '[[["),
    (b'{"at": 1, "in": 2, "out": 3}\n{"x\xff": 1}\n', "line 2: b'\\xff': not UTF-8"),
    (b"ARROW1\0\0", "is an Arrow file; a JSON Lines file is needed"),
]


@pytest.mark.parametrize(("content", "expected"), JSONL_TROUBLES)
def test_jsonl_troubles(tmp_path, content, expected):
    assert refusal(tmp_path, content, reader=readers.read_jsonl).startswith(expected)


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (
            ["1,1,1,a,1,0", "2,1,1,b,1,0", "3,1,1,a,1,0"],
            "line 4, column 'name': 'a': must be unique; line 2 has it too",
        ),
        (["1,1,1,,1,0"], "line 2, column 'name': '': is empty"),
        (["1,1,5,a,4,0"], "line 2, column 'most': '4': must be at least the output, 5"),
        (["1,1,5,a,,0"], "line 2, column 'most': '': is empty"),
        (["1,1,5,a,5,high"], "line 2, column 'rank': 'high': must be a whole number"),
        ([f"1,1,5,a,5,-{2**31 + 1}"], f"line 2, column 'rank': '-{2**31 + 1}': must be at least -2147483648"),
    ],
)
def test_optional_columns(tmp_path, rows, expected):
    text = "at,in,out,name,most,rank\n" + "\n".join(rows) + "\n"
    assert refusal(tmp_path, text, names=ALL).startswith(expected)


def test_a_json_id(tmp_path):
    row = '{"at": 1, "in": 2, "out": 3, "id": %s}\n'
    names = {**NAMES, "id": "id"}
    assert read(tmp_path, row % 7, names=names, reader=readers.read_jsonl)[0].id == "7"
    for wrong in ("1.5", "null", "[]", '"\\ud800"'):
        assert "'id'" in refusal(tmp_path, row % wrong, names=names, reader=readers.read_jsonl)


def test_shuffled_azure_rows(tmp_path):
    rows = ["2023-11-16 18:15:46.6805900,374,44", "2023-11-16 18:15:50.9951690,396,109", "2023-11-16 18:15:51.2,1,1"]
    for order in itertools.permutations(rows):
        text = AZURE_HEADER + "\r\n".join(order)
        if list(order) == rows:
            assert len(read(tmp_path, text, names=AZURE, unit="stamp")) == 3
        else:
            assert "is earlier than line" in refusal(tmp_path, text, names=AZURE, unit="stamp")
        found = read(tmp_path, text, names=AZURE, unit="stamp", sort=True)
        assert found.field("prompt") == [374, 396, 1] and found.field("arrival")[1] == 4_314_579_000


def test_mistyped_azure_times(tmp_path):
    for stamp in (
        "",
        "18:15:46",
        "1700000000",
        "2023-11-16 18:15:46.",
        "2023-11-16 18:15:46.12345678901",
        "2023-13-01 00:00:00",
    ):
        text = f"{AZURE_HEADER}{stamp},1,1\n"
        assert refusal(tmp_path, text, names=AZURE, unit="stamp").startswith(f"line 2, column 'TIMESTAMP': {stamp!r}: ")
    far = f"{AZURE_HEADER}2023-01-01 00:00:00,1,1\n2223-01-01 00:00:00,1,1\n"
    assert "2^62" in refusal(tmp_path, far, names=AZURE, unit="stamp")


def mooncake_row(**changes):
    return json.dumps({"timestamp": 5, "input_length": 513, "output_length": 3, "hash_ids": [7, 8], **changes}) + "\n"


def test_mooncake(tmp_path):
    text = mooncake_row() + mooncake_row(timestamp=7, input_length=512, hash_ids=[2**63 - 1])
    found = read(tmp_path, text, names=MOONCAKE, unit="ms", reader=readers.read_jsonl)
    assert list(found) == [Request("0", 0, 513, 3, 3), Request("1", 2_000_000, 512, 3, 3)]
    assert [found.block_hashes(0), found.block_hashes(-1)] == [[7, 8], [2**63 - 1]]
    backwards = mooncake_row(timestamp=9) + mooncake_row(input_length=1, hash_ids=[1])
    found = read(tmp_path, backwards, names=MOONCAKE, unit="ms", reader=readers.read_jsonl, sort=True)
    assert [found.block_hashes(0), found.block_hashes(1)] == [[1], [7, 8]]
    assert [found[0].id, found[1].id] == ["1", "0"]


@pytest.mark.parametrize("hashes", [None, 5, [], [7], [7, 8, 9], [7, -1], [7, "8"], [7, 8.0], [7, True], [7, 2**63]])
def test_mooncake_hashes_are_checked(tmp_path, hashes):
    text = mooncake_row() + mooncake_row(hash_ids=hashes)
    found = refusal(tmp_path, text, names=MOONCAKE, unit="ms", reader=readers.read_jsonl)
    assert found.startswith("line 2, key 'hash_ids': ")


def test_not_a_file(tmp_path):
    for reader in (readers.read_csv, readers.read_jsonl):
        for path, expected in ((tmp_path, "is a directory"), (tmp_path / "none", "cannot be read: No such file")):
            with pytest.raises(InputError, match=expected):
                reader(path, Layout(NAMES, "s"))


def test_long_cells_beside_what_is_read(tmp_path):
    """A column of texts, some of a million characters, with quotes and line ends in them."""
    text = '"' + 'He said ""no"",\n' * 70_000 + '"'
    assert len(read(tmp_path, f"at,in,text,out\n0,1,{text},2\n1,1,short,2\n")) == 2
    assert "line 2: not valid CSV: unexpected end of data" in refusal(tmp_path, f"at,in,text,out\n0,1,{text[:-1]},2\n")
    assert "must be at most 2^40" in refusal(tmp_path, "at,in,out\n0," + "5" * 1_000_000 + ",2\n")


def test_numbers_of_a_million_digits(tmp_path):
    line = '{"at": 0, "in": ' + "5" * 1_000_000 + ', "out": 2}\n'
    said = refusal(tmp_path, line, reader=readers.read_jsonl)
    assert "line 1" in said and said.endswith("a number of thousands of digits") and len(said) < 400


# The public traces


@needs_traces
@pytest.mark.parametrize(
    ("name", "rows", "seconds", "prompt"), [("conv", 19_366, 3502, 1155), ("code", 8_819, 3436, 2048)]
)
def test_azure_files(name, rows, seconds, prompt):
    path = TRACES / "azure-2023" / f"AzureLLMInferenceTrace_{name}.csv"
    found = readers.read_csv(path, Layout(AZURE, "stamp"))
    assert len(found) == rows
    assert (
        found.arrival[0] == 0
        and round(int(found.arrival[-1]) / 1e9) == seconds
        and round(found.prompt.mean()) == prompt
    )
    with path.open("rb") as file:
        thorough = readers.read_thoroughly(path, file, Layout(AZURE, "stamp"))
    assert all((getattr(found, name) == getattr(thorough, name)).all() for name in ("arrival", "prompt", "output"))


@needs_traces
@pytest.mark.parametrize(("name", "rows"), [("conversation", 12_031), ("synthetic", 3_993)])
def test_mooncake_files(name, rows):
    found = readers.read_jsonl(TRACES / "mooncake" / f"{name}_trace.jsonl", Layout(MOONCAKE, "ms", kind="key"))
    assert len(found) == rows
    offsets, values = found.hashes
    assert len(offsets) == rows + 1 and len(values) == offsets[-1] == sum(-(-found.prompt // 512))
