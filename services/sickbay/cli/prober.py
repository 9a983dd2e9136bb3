"""The command that probes in a process of its own: prober."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..bus.view_names import view_names
from ..config import Settings
from ..prober.settings import Probe, ProbeSettings, read_probes
from .base import DataFolder, NatsUrl, SaysNo, console, nats_options, settings


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command()(prober)


def prober(
    *,
    probes: Annotated[
        Path | None, typer.Option(help="File (TOML) of targets to probe while nobody calls; default $SICKBAY_PROBES.")
    ] = None,
    nats: NatsUrl = None,
    data: DataFolder = None,
    log_level: Annotated[str | None, typer.Option(help="DEBUG, INFO, WARNING or ERROR.")] = None,
) -> None:
    """Probe targets that nobody calls, as `sickbay serve --probes` does, in a process with a router's rights.

    Example: sickbay prober --probes probes.toml --nats nats://nats:4222
    """
    from .running import log_to_stderr, loop_runner

    found = settings(probes=None if probes is None else str(probes), nats=nats, data=data, log_level=log_level)
    if not found.probes:
        raise SaysNo("it needs a file of targets: name one with --probes or SICKBAY_PROBES")
    text = Path(found.probes).expanduser().read_text(encoding="utf-8")
    wanted, targets = read_probes(text, machine=found.machine_name)
    log_to_stderr(found.log_level)
    with loop_runner() as runner:
        runner.run(_probe(found, wanted, targets))


async def _probe(found: Settings, wanted: ProbeSettings, targets: list[Probe]) -> None:
    """Probe until a signal, while the view is fresh: a stale view does not say what is held."""
    from ..bus.link import Link
    from ..prober.prober import Prober, ViewFacts
    from ..view.mirror import Mirror
    from .running import ended_by_signal

    ended = ended_by_signal()
    link = Link(nats_options(found, f"sickbay-prober {found.replica_name}"))
    mirror = Mirror(link, names=view_names(found.view))
    running = Prober(
        wanted,
        targets,
        replica=found.replica_name,
        facts=ViewFacts(mirror, lambda: link.client),
        is_active=lambda: mirror.is_loaded and not mirror.is_stale,
        client=lambda: link.client,
    )
    link.start()
    mirror.start()
    work = asyncio.create_task(running.run())
    console().print(f"{running.size} targets of {found.probes}, while nobody calls them")
    sys.stdout.flush()
    try:
        await ended.wait()
    finally:
        work.cancel()
        await asyncio.wait([work])
        await mirror.stop()
        with contextlib.suppress(asyncio.CancelledError):
            await link.close()
