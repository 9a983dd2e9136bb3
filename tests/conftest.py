"""Fixtures that every test may use: real nats-servers and a client."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from nats.aio.client import Client

import past_rig
from nats_servers import NatsCluster, NatsServer
from sickbay.bus.connect import connect_client
from sickbay.service.services import Services
from upstream import upstream  # noqa: F401 - a fixture is used by its name

# In the background SIGINT may be ignored, which children inherit, and Ctrl-C could not be tried. With a handler
# here a child begins with the default.
signal.signal(signal.SIGINT, signal.default_int_handler)


LONG_FIRST = ("test_runbook", "test_compose_topology", "test_reporter_outage", "test_page", "test_trials")
"""Modules with tests that wait for long: begun last, they would leave the other workers idle at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The long ones first, all else in its order."""
    items.sort(key=lambda item: item.path.stem not in LONG_FIRST)


@pytest.fixture
def nats_server() -> Iterator[NatsServer]:
    """A running nats-server with JetStream and an empty store."""
    with NatsServer() as server:
        yield server


@pytest.fixture
def nats_server_factory() -> Iterator[Callable[..., NatsServer]]:
    """Makes and starts servers with the arguments of `NatsServer`; all are stopped at the end."""
    made: list[NatsServer] = []

    def make(**options: Any) -> NatsServer:
        server = NatsServer(**options)
        made.append(server)
        return server.start()

    yield make
    for server in made:
        server.stop()


@pytest.fixture
def nats_cluster() -> Iterator[NatsCluster]:
    """Three nats-servers with JetStream that have found a leader."""
    cluster = NatsCluster()
    try:
        yield cluster.start()
    finally:
        cluster.stop()


@pytest.fixture
async def nats_client(nats_server: NatsServer) -> AsyncIterator[Client]:
    """A client of `nats_server`, made by the product's own `connect_client`."""
    client = await connect_client(nats_server.url)
    yield client
    await client.close()


@pytest.fixture(name="services")
async def running_services(nats_server: NatsServer) -> AsyncIterator[Services]:
    """Services of `nats_server` in this process, answering and writing."""
    async with past_rig.services(nats_server.url, "box-1") as running:
        yield running
