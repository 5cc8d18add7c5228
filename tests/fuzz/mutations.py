"""Changes of valid data that know its structure: trees of JSON and YAML, tables, bytes, and specs that name code."""

from __future__ import annotations

import copy
import io
import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

Path_ = tuple[Any, ...]


def evil_specs(marker: str, canary: str) -> list[str]:
    """Spec strings that would leave the file `marker`, or load a module, if anybody made what they name.

    Args:
        marker: the file's path.
        canary: of a Python file that writes the marker when it is imported.
    """
    touch = f"touch {marker}"
    return [
        f"subprocess:Popen(args='{touch}', shell=True)", f"os:system('{touch}')", f"os:popen(cmd='{touch}')",
        f"reputation(defense=\"os:system(command='{touch}')\")", f"{canary}:Canary", f"{canary}:Canary()",
        f"varied(attack='{canary}:Canary')", f"reputation(defense='{canary}:Canary')", f"logit+{canary}:Canary",
        "antigravity:fly", "this:s", "canary:Canary", "tests.fuzz.canary:Canary", "pathlib:Path('/etc/passwd')",
        "/dev/zero:X", "reputation(defense='/dev/zero:X')", "/etc/passwd:X", "../../../../etc/passwd:X",
        "builtins:exec(object='import antigravity')", "logit(", "logit(k=10**10)", "logit(k=" + "[" * 300 + ")",
        "+".join(["logit"] * 400), "reputation(" * 60 + ")" * 60, "varied(attack='varied(attack=\\'text\\')')",
    ]  # fmt: skip


STRANGE: list[Any] = [
    None, True, False, 0, 1, -1, 2, 10**6, 10**9, 2**31, 2**63, -(2**63), 2**64, 10**30, 10**400, 0.5, -0.0, 1e300,
    -1e300, 1e-320, float("nan"), float("inf"), float("-inf"), "", " ", "x", "none", "0", "\x00", "\x1b[2J\x1b[31m",
    "\ud800", "\u202eabc", "\n", "a\r\nb", "é" * 50, "x" * 5000, "../../evil", "/etc/passwd",
    "/dev/zero", "/proc/self/mem",
    "..", ".", "C:\\x", "file:///etc/passwd", "{{7*7}}", "{0.__class__}", "%s%n", "<script>alert(1)</script>",
    "\\input{/etc/passwd}",
    [], {}, [[]], [None], [0], ["x"], {"": None}, {"x": 1}, [1, "x", None, {}], "!!python/object/apply:os.system",
]  # fmt: skip
"""Values that stand where others are expected."""


def nested(levels: int, kind: str) -> Any:
    """Lists or objects in one another."""
    value: Any = 0
    for _ in range(levels):
        value = [value] if kind == "list" else {"x": value}
    return value


class Mutator:
    """Makes changes with one generator, so that a seed repeats them.

    Args:
        rng: of the case.
        specs: see `evil_specs`.
    """

    def __init__(self, rng: random.Random, specs: list[str]) -> None:
        self.rng, self.specs = rng, specs

    def value(self, old: Any) -> Any:
        """Another value in the place of `old`, near it or strange."""
        rng = self.rng
        kind = rng.random()
        if isinstance(old, str) and kind < 0.35:
            return rng.choice(self.specs)
        if isinstance(old, str) and kind < 0.5 and old:
            at = rng.randrange(len(old) + 1)
            return (
                old[:at] + rng.choice(["\x00", "\x1b", "\n", "'", '"', "(", ")", ":", "/", "..", "é", " "]) + old[at:]
            )
        if type(old) in (int, float) and kind < 0.5 and abs(old) < 1e300:  # else there is no float of an integer
            return rng.choice([old + 1, old - 1, -old, old * 2, old * 10**6, float(old), str(old), old / 3, not old])
        if isinstance(old, list) and kind < 0.5:
            return rng.choice([old * 2, old[::-1], old[:-1], old[1:], [old], dict(enumerate(map(str, old))), old * 50])
        if isinstance(old, dict) and kind < 0.3:
            return rng.choice([list(old), list(old.values()), {"x": old}, {}])
        if kind < 0.6:
            return nested(rng.choice([5, 31, 150, 250]), rng.choice(["list", "object"]))
        return copy.deepcopy(rng.choice(STRANGE))  # what is changed next must not be the list itself

    def tree(self, data: Any, where: Callable[[Path_], bool] = lambda path: True) -> Any:
        """A changed copy of plain data; the data's own copy must be made by the caller."""
        for _ in range(self.rng.choice([1, 1, 1, 2, 3])):
            places = [path for path in _places(data) if where(path)]
            if not places:
                return self.value(data)
            # Every depth alike: there are far more leaves than anything else.
            depth = self.rng.choice(sorted({len(path) for path in places}))
            path = self.rng.choice([each for each in places if len(each) == depth])
            holder = data
            for part in path[:-1]:
                holder = holder[part]
            self._change(holder, path[-1])
        return data

    def _change(self, holder: Any, name: Any) -> None:
        rng, how = self.rng, self.rng.random()
        if how < 0.72:
            holder[name] = self.value(holder[name])
        elif how < 0.84:
            del holder[name]
        elif isinstance(holder, dict):
            if how < 0.9:
                holder[rng.choice(["x", "", "__class__", str(name).upper(), f"{name} ", "schema_version"])] = holder[
                    name
                ]
            elif how < 0.95:
                holder[rng.choice(["x", f"{name}s", "\x1b"])] = holder.pop(name)
            else:
                other = rng.choice(list(holder))
                holder[name], holder[other] = holder[other], holder[name]
        elif how < 0.92:
            holder.insert(name, holder[name])
        else:
            holder.append(copy.deepcopy(rng.choice(STRANGE)))

    def data(self, data: bytes) -> bytes:
        """Changed bytes: flipped bits, a cut end, a part twice, or something else altogether."""
        rng, how = self.rng, self.rng.random()
        if not data or how < 0.03:
            return rng.choice([b"", b"\x00", b"PAR1", b"{}", b"[]", b"null", b"[" * 100_000, b"\xff\xfe", b"{" * 3000])
        if how < 0.6:
            changed = bytearray(data)
            for _ in range(rng.choice([1, 1, 2, 4, 16])):
                changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
            return bytes(changed)
        at = rng.randrange(len(data))
        if how < 0.75:
            return data[:at]
        if how < 0.85:
            return data[at:]
        size = rng.randrange(1, 200)
        return data[: at + size] + data[at:]

    def text(self, data: Any) -> bytes:
        """Plain data as JSON, sometimes with a key twice or broken bytes."""
        written = json.dumps(data).encode()
        how = self.rng.random()
        if how < 0.06 and isinstance(data, dict) and data:
            name = self.rng.choice(list(data))
            return (
                b"{"
                + json.dumps(str(name)).encode()
                + b":"
                + json.dumps(self.value(data[name])).encode()
                + b","
                + written[1:]
            )
        return self.data(written) if how < 0.12 else written

    def parquet(self, content: bytes) -> bytes:
        """A changed table: other bytes, columns, types, rows or values."""
        rng, how = self.rng, self.rng.random()
        if how < 0.35:
            return self.data(content)
        table = pq.read_table(io.BytesIO(content))
        if how < 0.42:
            names = list(table.column_names)
            rng.shuffle(names)
            return _parquet(table.select(names[: rng.randrange(len(names) + 1)]))
        if how < 0.5:
            name = rng.choice(table.column_names)
            plain = pa.array([rng.choice([0, None])] * len(table))
            other = rng.choice([plain, pa.array([None] * len(table), pa.string()),
                                pa.array([["x"]] * len(table)), pa.array([0.5] * len(table))])  # fmt: skip
            return _parquet(table.set_column(table.column_names.index(name), name, other))
        if how < 0.56:
            rows = rng.choice([0, 1, len(table) // 2])
            return _parquet(table.slice(0, rows))
        if how < 0.6:
            return _parquet(pa.concat_tables([table] * rng.choice([2, 30, 300])))
        if how < 0.63:
            return bomb(table, rng.choice([100_000, 400_000]), 1000)
        return self._values(table)

    def _values(self, table: pa.Table) -> bytes:
        rows = table.to_pylist()
        for _ in range(self.rng.choice([1, 1, 2, 8])):
            if rows:
                row = self.rng.choice(rows)
                name = self.rng.choice(list(row))
                field = table.schema.field(name)
                row[name] = self._fitting(field.type, row[name])
        try:
            return _parquet(pa.Table.from_pylist(rows, table.schema))
        except (pa.ArrowException, UnicodeEncodeError, OverflowError, TypeError, ValueError):
            return self.data(_parquet(table))

    def _fitting(self, kind: pa.DataType, old: Any) -> Any:
        """A value that a column of this type can hold."""
        rng = self.rng
        if rng.random() < 0.1:
            return None
        if pa.types.is_list(kind):
            inner = [self._fitting(kind.value_type, 0) for _ in range(rng.choice([0, 1, 20, 5000]))]
            return rng.choice([inner, (old or []) + inner[:3], (old or [])[:-1], (old or []) * 3])
        if pa.types.is_integer(kind):
            return rng.choice([0, -1, 1, 2**31 - 1, -(2**31), 12345, 10**6])
        if pa.types.is_floating(kind):
            return rng.choice([0.0, -1.0, 2.0, 1e300, float("nan"), float("inf"), float("-inf"), -0.0])
        if pa.types.is_boolean(kind):
            return not old
        return rng.choice([each for each in (*STRANGE, *self.specs) if isinstance(each, str) and "\ud800" not in each])


def bomb(table: pa.Table, size: int, rows: int) -> bytes:
    """A small file whose one long text, written once, fills memory when it is read."""
    text = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), pa.array(["x" * size]))
    long = pa.concat_tables([table.slice(0, 1)] * rows)
    long = long.set_column(long.schema.get_field_index("text"), "text", text)
    own = io.BytesIO()
    pq.write_table(table, own)
    schema = pq.ParquetFile(own).metadata.metadata[b"ARROW:schema"]
    file = io.BytesIO()
    with pq.ParquetWriter(file, long.schema, store_schema=False, compression="zstd") as writer:
        writer.add_key_value_metadata({"ARROW:schema": schema.decode()})
        writer.write_table(long)
    return file.getvalue()


def _parquet(table: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def _places(data: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The paths of everything in plain data, but of at most 60 members of one list."""
    inside = data.items() if isinstance(data, dict) else enumerate(data[:60]) if isinstance(data, list) else ()
    for name, value in inside:
        yield (*path, name)
        yield from _places(value, (*path, name))
