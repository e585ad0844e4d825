"""`streamserve plan place`: which pool should host which plan, so that plans that share arrays share memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from streamserve.cli import plan_store
from streamserve.cli.targeting import Servers, run
from streamserve.client.connection import KafkaLog
from streamserve.client.hosted import hosted_plans
from streamserve.client.targets import target_of_config
from streamserve.errors import ConfigError

Pools = Annotated[int, typer.Option("--pools", min=1, max=10_000, help="How many pools there are to be.")]
_MB = 1e6


def place(  # noqa: PLR0917  (typer: options)
    pools: Pools,
    packed: Annotated[
        list[Path] | None, typer.Argument(help="`.plan` files; left out: every plan of the store, by its name.")
    ] = None,
    store: plan_store.Folder = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="An app's config: the plans that its running pools say they hold.")
    ] = None,
    bootstrap_servers: Servers = None,
    as_json: plan_store.AsJson = False,
) -> None:
    """Propose a placement of plans in pools, and its memory beside that of dealing them out in turn.

    Pools take about equally many plans (up to a tenth more, for the sake of sharing). What is compared is the arrays of
    the plans in each pool's processes; nothing is changed: `[pools.NAME] models` says where a model is.
    """
    from streamserve.plan.placement import place as proposed  # noqa: PLC0415  (as its neighbours)

    if config is not None:
        target = target_of_config(config, bootstrap_servers)
        models = run(hosted_plans(KafkaLog(target.bootstrap_servers, target.security), target.app))
    else:
        models = _of_files(packed) if packed else _of_store(store)
    if not models:
        raise ConfigError(
            "there is no plan to place: name `.plan` files, a store that holds some (--store), or the config of an app "
            "whose pools serve some (--config)"
        )
    found = proposed(models, pools)
    if as_json:
        report = {
            "pools": [
                {"models": list(members), "bytes": size}
                for members, size in zip(found.pools, found.pool_bytes, strict=True)
            ],
            "bytes": found.bytes,
            "bytes_dealt_in_turn": found.dealt_bytes,
            "bytes_unshared": found.unshared_bytes,
        }
        typer.echo(json.dumps(report))
        return
    for i, (members, size) in enumerate(zip(found.pools, found.pool_bytes, strict=True), start=1):
        typer.echo(f"pool {i}: {len(members)} plans, {size / _MB:,.1f} MB: {', '.join(members)}")
    typer.echo(
        f"all pools {found.bytes / _MB:,.1f} MB; dealt out in turn {found.dealt_bytes / _MB:,.1f} MB; "
        f"nothing shared {found.unshared_bytes / _MB:,.1f} MB"
    )


def _of_files(packed: list[Path]) -> dict[str, dict[str, int]]:
    from streamserve.plan.packing import read_manifest  # noqa: PLC0415  (numba takes a second)

    return {
        str(path): {digest: int(about["bytes"]) for digest, about in read_manifest(path)["objects"].items()}
        for path in packed
    }


def _of_store(folder: Path | None) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for digest, manifest in plan_store.opened(folder).manifests().items():
        name = str(manifest.get("name") or digest)
        held = {array: int(about["bytes"]) for array, about in manifest["objects"].items()}
        found[name if name not in found else f"{name} ({digest})"] = held
    return found
