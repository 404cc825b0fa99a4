"""What the tables share: results, and how figures are written."""
import json
import os

RESULTS = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "results")
GIB = 2**30
loaded = {}  # the results that were read, by file name


def load(name):
    """A result: JSON, a list of the lines of JSON, or text."""
    if name not in loaded:
        with open(os.path.join(RESULTS, name), encoding="utf-8") as file:
            text = file.read()
        if name.endswith(".jsonl"):
            loaded[name] = [json.loads(line) for line in text.splitlines()]
        else:
            loaded[name] = text if name.endswith(".txt") else json.loads(text)
    return loaded[name]


def find(name, **fields):
    """The rows of a result that have these values."""
    result = load(name)
    found = [row for row in (result if isinstance(result, list) else result["rows"])
             if all(same(row.get(key), value) for key, value in fields.items())]
    assert found, f"{name} has no row with {fields}"
    return found


def find_one(name, **fields):
    found = find(name, **fields)
    assert len(found) == 1, f"{name} has {len(found)} rows with {fields}"
    return found[0]


def same(a, b):  # a temperature of 0.8 was written as an f32
    return abs(a - b) < 1e-6 if isinstance(a, float) and isinstance(b, (int, float)) else a == b


def table(head, rows):
    lines = [head.split(" | "), *rows]
    assert all(len(line) == len(lines[0]) for line in lines), lines
    text = ["| " + " | ".join(str(cell) for cell in line) + " |" for line in lines]
    text.insert(1, "|---" * len(lines[0]) + "|")
    return "\n".join(text)


def grouped(rows, cells=1):
    """The rows, the first cells empty where they are those of the row before."""
    return [[*([""] * cells if before and before[:cells] == row[:cells] else row[:cells]), *row[cells:]]
            for before, row in zip([None, *rows], rows)]


def number(value, decimals=0):
    """1,045 or 7.41; of None, a place that is empty."""
    return "" if value is None else f"{value:,.{decimals}f}"


def digits(value, count=3):
    """So many digits at least: 3,746; 54.0; 4.97."""
    return number(value, max(0, count - len(str(int(value)))))


def seconds(ms):
    return f"{digits(ms)} ms" if ms < 1000 else f"{digits(ms / 1000)} s"


def gib(size):
    return f"{size / GIB:.2f} GiB"


def total(rows, *path):
    return sum(at(row, *path) for row in rows)


def mean(rows, *path):
    return total(rows, *path) / len(rows)


def at(row, *path):
    for key in path:
        row = row[key]
    return row
