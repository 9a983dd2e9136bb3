"""Metrics for Prometheus: the table of all metrics, samples of a router, their text.

    prometheus_client.REGISTRY.register(sickbay.metrics.collector(sb))  # in a router, for its own endpoint

Values are read at scrape time, so a restart never reports stale ones. Needs prometheus-client, which is imported when
it is used. The services' own samples live in service/. May import the ground, `bus`, `view`, `router`, `sync` and
`projections`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from ..durations import DurationHistogram
from .router import RouterSamples, link_samples, mirror_samples
from .sample import Sample, build_sample
from .table import API, ROUTER, SERVICES, Metric

if TYPE_CHECKING:
    from prometheus_client.core import Metric as Family
    from prometheus_client.registry import Collector

    from ..bus.link import Link
    from ..router.client import Sickbay
    from ..sync import SyncSickbay
    from ..view.entries import View

__all__ = ["API", "ROUTER", "SERVICES", "Metric", "api_exposition", "collector", "write_exposition"]


async def api_exposition(link: Link, mirror: View, accept: str = "") -> tuple[bytes, str]:
    """The same of a process of the HTTP interface that is no projector: how fresh what it answers from is."""

    def samples() -> Iterator[Sample]:
        yield build_sample()
        yield from link_samples(link)
        yield from mirror_samples(mirror)

    return write_exposition(API, samples, accept)


def write_exposition(
    table: tuple[Metric, ...], samples: Callable[[], Iterable[Sample]], accept: str
) -> tuple[bytes, str]:
    """Samples as (body, content type): OpenMetrics where the Accept header asks for it, else Prometheus text."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import choose_encoder

    registry = CollectorRegistry()
    registry.register(_Collector(table, samples))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def collector(sb: Sickbay | SyncSickbay) -> Collector:
    """A collector over a router's connection, to be registered by its owner. May be asked in any thread, before the
    connection stands, and after it is closed. Raises `ModuleNotFoundError` without prometheus-client."""
    import prometheus_client  # noqa: F401 - that it is missing is said here, not at the first scrape

    samples = RouterSamples(sb)
    return _Collector(ROUTER, samples)


class _Collector:
    """What prometheus_client asks: makes its families of ours."""

    def __init__(self, table: tuple[Metric, ...], samples: Callable[[], Iterable[Sample]]) -> None:
        self._table, self._samples = table, samples

    def describe(self) -> Iterator[Family]:
        """The families without samples, so that registering reads no state."""
        return _families(self._table, ())

    def collect(self) -> Iterator[Family]:
        """The families as of now."""
        return _families(self._table, self._samples())


def _families(table: tuple[Metric, ...], samples: Iterable[Sample]) -> Iterator[Family]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    families: dict[str, Family] = {}
    for row in table:
        if row.sort == "counter":
            families[row.name] = CounterMetricFamily(row.name, row.says, labels=row.labels)
        elif row.sort == "gauge":
            families[row.name] = GaugeMetricFamily(row.name, row.says, labels=row.labels)
        else:
            families[row.name] = HistogramMetricFamily(row.name, row.says, labels=row.labels)
    for sample in samples:
        family, value = families[sample.name], sample.value
        if isinstance(value, DurationHistogram):
            assert isinstance(family, HistogramMetricFamily)
            family.add_metric(sample.labels, value.cumulated(), value.sum_s)
        else:
            assert isinstance(family, CounterMetricFamily | GaugeMetricFamily)
            family.add_metric(sample.labels, value)
    yield from families.values()
