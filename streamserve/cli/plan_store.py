"""`streamserve plan store`: what the object store of a machine holds, and what of it nobody needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from streamserve.errors import ConfigError

if TYPE_CHECKING:
    from streamserve.plan.store import Store

app = typer.Typer(help="The store of arrays that plans share: ls, stats, rm, gc.", no_args_is_help=True)
Folder = Annotated[
    Path | None, typer.Option("--store", help="Folder of the store; left out: `plans` in the cache folder.")
]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on one line, for programs.")]


def opened(folder: Path | None) -> Store:
    """The store of a folder."""
    from streamserve.plan.store import Store  # noqa: PLC0415  (numpy takes a while)

    return Store(folder)


@app.command("ls")
def list_plans(store: Folder = None) -> None:
    """A line a plan: hash, bytes of its arrays, of them its own alone, and name."""
    for holding in opened(store).holdings():
        typer.echo(f"{holding.digest}  {holding.bytes:>14,}  {holding.unique_bytes:>14,}  {holding.name}")


@app.command()
def stats(store: Folder = None, as_json: AsJson = False) -> None:
    """How much the plans would hold without sharing, how much they do, and how much nobody needs."""
    kept = opened(store)
    holdings, objects = kept.holdings(), kept.object_bytes()
    wanted = {digest for manifest in kept.manifests().values() for digest in manifest["objects"]}
    report = {
        "folder": str(kept.folder),
        "plans": len(holdings),
        "objects": len(objects),
        "bytes_unshared": sum(holding.bytes for holding in holdings),
        "bytes_shared": sum(size for digest, size in objects.items() if digest in wanted),
        "bytes_unneeded": sum(size for digest, size in objects.items() if digest not in wanted),
    }
    if as_json:
        typer.echo(json.dumps(report))
        return
    for name, value in report.items():
        typer.echo(f"{name.replace('_', ' '):16} {value:,}" if isinstance(value, int) else f"{name:16} {value}")


@app.command("rm")
def remove(
    plan: Annotated[str, typer.Argument(help="Hash of a plan (as `ls` shows it), or its first digits.")],
    store: Folder = None,
) -> None:
    """Forget a plan; `gc` then removes the arrays that no other needs. Processes that use them are not disturbed."""
    kept = opened(store)
    found = [digest for digest in kept.manifests() if digest.startswith(plan)]
    if len(found) != 1:
        raise ConfigError(f"{len(found) or 'no'} plans of {kept.folder} begin with {plan!r}; `ls` lists them")
    kept.remove(found[0])
    typer.echo(f"forgot {found[0]}")


@app.command("gc")
def collect(store: Folder = None) -> None:
    """Remove arrays that no plan needs, and files that a writer left unfinished."""
    done = opened(store).collect()
    typer.echo(f"removed {done.objects} arrays ({done.bytes:,} bytes) and {done.unfinished} unfinished files")
