"""What the projector's tests share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nats_servers import NatsServer
from projector_processes import Process, Spawn


@pytest.fixture
def spawn(nats_server: NatsServer) -> Iterator[Spawn]:
    """Starts projector processes on the test's server; all are ended with the test."""
    made: list[Process] = []

    def start(name: str, **options: object) -> Process:
        made.append(Process(nats_server.url, name, **options))
        return made[-1]

    yield start
    for process in made:
        process.stop()
