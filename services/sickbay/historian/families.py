"""The counts of a history, and the statements that fill them and roll them up.

Counts stand in families, each with one table a grain: minutes that grow old are added up into hours, hours into days.
One statement a table does both, new increments and rolling up, since both add to what stands there.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Grain(NamedTuple):
    """One resolution."""

    name: str
    length_s: int


GRAINS: Final = (Grain("minute", 60), Grain("hour", 3_600), Grain("day", 86_400))


class Family(NamedTuple):
    """Counts of one sort."""

    name: str
    keys: dict[str, type]
    """What is counted apart, beside the time."""
    sums: tuple[str, ...]
    histograms: tuple[str, ...] = ()
    foreign: tuple[tuple[str, str, str], ...] = ()

    def table(self, grain: Grain) -> str:
        """The table of one resolution."""
        return f"{self.name}_by_{grain.name}"

    @property
    def columns(self) -> tuple[str, ...]:
        """What is given when a row is written; quantiles follow from it."""
        return ("start_s", *self.keys, *self.sums, *self.histograms)

    def upsert(self, grain: Grain, rows: str | None = None) -> str:
        """The statement that adds rows, of parameters or of another statement, to a table."""
        table = self.table(grain)
        found = self.columns
        values = rows or f"VALUES ({', '.join('?' * len(found))})"
        grows = [f"{name} = {name} + excluded.{name}" for name in self.sums]
        grows += [f"{name} = latency_merged({name}, excluded.{name})" for name in self.histograms]
        into = f"INSERT INTO {table} ({', '.join(found)}) {values}"
        return f"{into} ON CONFLICT DO UPDATE SET {', '.join(grows)}"

    def roll_up(self, fine: Grain, coarse: Grain) -> tuple[str, str]:
        """The statements that add what lies before a time to the coarser table, and that drop it from the finer."""
        length_s = coarse.length_s
        keys = ", ".join(self.keys)
        gained = [f"sum({name})" for name in self.sums] + [f"latency_sum({name})" for name in self.histograms]
        rows = (
            f"SELECT start_s / {length_s} * {length_s} AS begins, {keys}, {', '.join(gained)} "
            f"FROM {self.table(fine)} WHERE start_s < ? GROUP BY begins, {keys} ORDER BY begins, {keys}"
        )
        return self.upsert(coarse, rows), f"DELETE FROM {self.table(fine)} WHERE start_s < ?"


SCOPE: Final = ("scope_id", "scopes", "id")
CALLS: Final = Family(
    "calls",
    {"scope_id": int, "kind": str},
    ("calls", "forced", "trials", "streamed", "by_fallback", "took_ms"),
    ("took", "ttft"),
    (SCOPE, ("kind", "kinds", "kind")),
)
REFUSED: Final = Family("refused", {"scope_id": int, "rule": str}, ("calls",), (), (SCOPE,))
ROUTES: Final = Family(
    "routes",
    {"route_id": int},
    ("calls", "answered", "by_fallback", "skipped"),
    (),
    (("route_id", "routes", "id"),),
)
CHARSETS: Final = Family("charsets", {"host": str, "charset": str}, ("answers", "streams", "damaged"))
FAMILIES: Final = (CALLS, REFUSED, ROUTES, CHARSETS)
