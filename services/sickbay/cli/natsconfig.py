"""The command that writes a NATS configuration: nats-config."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from ..invalid import InvalidValue
from .base import AsJson, console, plain_table, print_json, rows


def add(app: typer.Typer) -> None:
    """Add the command to the command line."""
    app.command("nats-config")(nats_config)


def nats_config(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder for the files; servers read them there.")],
    *,
    host: Annotated[
        list[str] | None,
        typer.Option(help="Name or IP by which clients reach the server; repeatable; default localhost."),
    ] = None,
    port: Annotated[int, typer.Option(help="Port of the first server.")] = 4222,
    cluster: Annotated[int, typer.Option(metavar="N", help="How many servers: 1, 3 or 5.")] = 1,
    router: Annotated[
        list[str] | None,
        typer.Option(help="A router with a user of its own, who reports under this name only; repeatable."),
    ] = None,
    view: Annotated[
        list[str] | None, typer.Option(help="A view beside the fleet's own that its users may use too; repeatable.")
    ] = None,
    store: Annotated[Path | None, typer.Option(help="Folder of the streams; default DIR/store.")] = None,
    store_gib: Annotated[float, typer.Option("--store-gib", help="Disk that the streams may fill, GiB.")] = 20,
    sync_interval: Annotated[
        str, typer.Option(metavar="TIME", help="How often to sync to the disk: always, or such as 10s.")
    ] = "10s",
    compose: Annotated[
        bool, typer.Option("--compose", help="For docker-compose.yml: three servers, and all that it mounts.")
    ] = False,
    update: Annotated[
        bool, typer.Option("--update", help="Write anew, but keep authority and passwords of who has one.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite, with new passwords and certificates.")] = False,
    as_json: AsJson = False,
) -> None:
    """Write a NATS server's configuration: TLS, accounts, and one user a role who may do no more than it must.

    Example: sickbay nats-config /etc/sickbay/nats --host nats.internal --router router-1 --router router-2
    """
    from ..nats_config.plan import COMPOSE_SERVERS, Plan
    from ..nats_config.write import write  # with cryptography, which no other command needs

    cluster = COMPOSE_SERVERS if compose and cluster == 1 else cluster
    hosts = tuple(host) if host else ("localhost",) if cluster > 1 and not compose else Plan(folder=folder).hosts
    plan = Plan(
        folder=folder,
        hosts=hosts,
        port=port,
        cluster=cluster,
        routers=tuple(router or ()),
        views=tuple(view or ()),
        store=store,
        store_gib=store_gib,
        sync=sync_interval,
        compose=compose,
    )
    if update and force:
        raise InvalidValue("--update, --force", "both", "one of the two")
    made = write(plan, "update" if update else "overwrite" if force else "refuse")
    if as_json:
        print_json(
            {
                "files": [str(path) for path in made.files],
                "servers": [str(path) for path in made.servers],
                "roles": {role.name: {"account": role.account, "says": role.says} for role in made.roles},
                "valid_until": made.valid_until.isoformat(),
            }
        )
        return
    out = console()
    out.print(f"{len(made.files)} files in {folder}; the certificates end on {made.valid_until:%Y-%m-%d}")
    out.print(rows(plain_table("role", "environment", "may"), ((r.name, f"{r.name}.env", r.says) for r in made.roles)))
    for line in _next(folder, made.servers, compose=compose):
        out.print(line, soft_wrap=True)


def _next(folder: Path, servers: tuple[Path, ...], *, compose: bool) -> Iterator[str]:
    """What to do with the files."""
    if compose:
        yield f"start   docker compose --env-file {folder / 'compose.env'} up --detach --wait"
        yield f"page    http://127.0.0.1:8480, signing in with the token in {folder / 'tokens' / 'operator'}"
        yield f"graphs  http://127.0.0.1:3000, with the password in {folder / 'grafana.env'}"
        yield f"shell   set -a; . {folder / 'outside' / 'operator.env'}; set +a; sickbay status"
    else:
        yield from (f"start   nats-server -c {path}" for path in servers)
        yield f"then    set -a; . {folder / 'services.env'}; set +a; sickbay serve"
    yield f"nats    XDG_CONFIG_HOME={folder} nats --context sickbay-operator stream ls"
