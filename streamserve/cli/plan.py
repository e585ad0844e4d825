"""`streamserve plan`: pack fitted models as white-box plans, compare, explain and time them; their store."""

from __future__ import annotations

import functools
import json
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from streamserve.cli import plan_store
from streamserve.cli.numbers import MOST, finite
from streamserve.cli.plan_place import place
from streamserve.cli.plan_rows import read_labelled, read_rows
from streamserve.errors import PlanDiffers
from streamserve.runtimes import ModelSpec
from streamserve.runtimes.frameworks import require
from streamserve.runtimes.sources import resolve

if TYPE_CHECKING:
    from streamserve.plan.compile import Plan

app = typer.Typer(help="White-box plans: pack, verify, explain, time; the store of their arrays.", no_args_is_help=True)
app.add_typer(plan_store.app, name="store")
app.command()(place)

Fitted = Annotated[
    str,
    typer.Argument(
        help="A fitted estimator: a `.skops` or `.joblib` file, or `package.module:attribute` (also a plan made there)."
    ),
]
Packed = Annotated[Path, typer.Argument(help="A `.plan` file.")]
TrustPickle = Annotated[
    bool, typer.Option("--trust-pickle", help="Read `.joblib` files and pickled black boxes: that runs their code.")
]
Trusted = Annotated[list[str] | None, typer.Option("--trusted-type", help="A type that a `.skops` file may hold.")]
Disabled = Annotated[list[str] | None, typer.Option("--disable", help="A rule to leave out; may be repeated.")]
Untested = Annotated[
    bool, typer.Option("--allow-untested", help="Go on with a version of scikit-learn that was not tested.")
]
Rows = Annotated[
    Path | None, typer.Option("--rows", help="JSON lines, one input each; left out: rows made from the plan itself.")
]
Float32 = Annotated[
    bool,
    typer.Option(
        "--f32", help="Linear heads over text in float32: not the original's answers; what they are off by is told."
    ),
]


@app.command()
def pack(  # noqa: PLR0917  (typer: options)
    fitted: Fitted,
    out: Annotated[Path, typer.Option("-o", "--out", help="The `.plan` file to write.")],
    trust_pickle: TrustPickle = False,
    trusted_type: Trusted = None,
    disable: Disabled = None,
    allow_untested: Untested = False,
    rows: Rows = None,
    store: plan_store.Folder = None,
    thin: Annotated[bool, typer.Option("--thin", help="Without the arrays, which this machine's store has.")] = False,
    f32: Float32 = False,
) -> None:
    """Compile a fitted estimator, compare the plan with it, choose the fastest stages, and write it as one file."""
    from streamserve.plan.costs import chosen  # noqa: PLC0415  (numba takes a second)
    from streamserve.plan.packing import pack as write  # noqa: PLC0415  (as above)

    compiled, _ = _compiled(fitted, trust_pickle, trusted_type, disable, allow_untested, rows)
    if f32:
        compiled = _narrowed(compiled, rows)
        typer.echo(_off(compiled))
    manifest = write(chosen(compiled), out, plan_store.opened(store), thin=thin, trust_pickle=trust_pickle)
    size = sum(int(about["bytes"]) for about in manifest["objects"].values())
    typer.echo(f"{out}: plan {manifest['plan']}, {len(manifest['objects'])} arrays, {size / 1e6:.2f} MB")
    for origin, why in compiled.black_boxes.items():
        typer.echo(f"black box: {origin or 'the model'}: {why}")
    pickled = [about for about in manifest["opaque"].values() if about["form"] == "joblib"]
    if pickled:
        typer.echo("It holds a pickle: it is loaded with trust_pickle = true only.")


@app.command()
def verify(  # noqa: PLR0917  (typer: options)
    packed: Packed,
    fitted: Fitted,
    trust_pickle: TrustPickle = False,
    trusted_type: Trusted = None,
    rows: Rows = None,
    store: plan_store.Folder = None,
) -> None:
    """Compare a packed plan with the estimator it was made of; its arrays' hashes are checked, too.

    Exit codes: 0 equal, 1 different (the first difference is told), 3 a model or plan cannot be loaded.
    """
    from streamserve.plan.packing import read_manifest  # noqa: PLC0415  (numba takes a second)
    from streamserve.plan.sampling import sample_rows  # noqa: PLC0415  (as above)
    from streamserve.plan.verify import compare  # noqa: PLC0415  (as above)

    plan = _loaded(packed, store, trust_pickle)
    kept = plan_store.opened(store)
    for digest in read_manifest(packed)["objects"]:
        kept.check(digest)
    estimator = _estimator(fitted, trust_pickle, trusted_type)
    tried = read_rows(rows, plan.graph.form) if rows else sample_rows(plan.graph)
    if plan.error is not None:
        _verify_narrow(plan, packed, fitted, estimator, tried)
        return
    found = compare(plan, estimator, tried)
    if found is not None:
        raise PlanDiffers(f"{packed} and {fitted} differ: {found.words()}")
    typer.echo(f"equal on {len(tried)} rows: {', '.join(plan.outputs)}")


@app.command()
def explain(  # noqa: PLR0917  (typer: options)
    source: Annotated[str, typer.Argument(help="A `.plan` file, or a fitted estimator as for `pack`.")],
    trust_pickle: TrustPickle = False,
    trusted_type: Trusted = None,
    disable: Disabled = None,
    allow_untested: Untested = False,
    mermaid: Annotated[bool, typer.Option("--mermaid", help="The final graph as a Mermaid flowchart.")] = False,
    store: plan_store.Folder = None,
) -> None:
    """Print the graph before the rules, after each that fired, and the stages; of a `.plan`, as it was packed."""
    from streamserve.plan import explain as words  # noqa: PLC0415  (numba takes a second)

    if source.endswith(".plan"):
        plan = _loaded(Path(source), store, trust_pickle)
    else:
        plan, _ = _compiled(source, trust_pickle, trusted_type, disable, allow_untested, None)
    typer.echo(words.as_mermaid(plan.graph) if mermaid else words.explain(plan), nl=False)


@app.command()
def bench(  # noqa: PLR0917  (typer: options)
    packed: Packed,
    fitted: Annotated[str | None, typer.Argument(help="The estimator, to be timed beside it.")] = None,
    trust_pickle: TrustPickle = False,
    trusted_type: Trusted = None,
    rows: Rows = None,
    store: plan_store.Folder = None,
    f32: Float32 = False,
) -> None:
    """Time a plan, and beside it the estimator, on batches of 1, 10 and 1000 rows; each stage's share; compilations."""
    from streamserve.plan.costs import black_box_share, shares, timed  # noqa: PLC0415  (numba takes a second)
    from streamserve.plan.kernels import compilations, warm  # noqa: PLC0415  (as above)
    from streamserve.plan.physical import SIZES  # noqa: PLC0415  (as above)
    from streamserve.plan.sampling import sample_rows  # noqa: PLC0415  (as above)

    plan = _loaded(packed, store, trust_pickle)
    warm()
    before = compilations()
    estimator = _estimator(fitted, trust_pickle, trusted_type) if fitted else None
    tried = read_rows(rows, plan.graph.form) if rows else sample_rows(plan.graph, odd=False)
    narrow = _narrowed(plan, rows) if f32 else None
    for size in SIZES:
        ours = timed(lambda batch: plan.run(batch, plan.outputs), tried, size)
        line = f"{size:5} rows: {ours * 1e6 / size:9.2f} us a row"
        if estimator is not None:
            theirs = timed(lambda batch: [getattr(estimator, name)(batch) for name in plan.outputs], tried, size)
            line += f"   estimator {theirs * 1e6 / size:9.2f}   x {theirs / ours:.1f}"
        if narrow is not None:
            float32 = timed(functools.partial(narrow.run, outputs=narrow.outputs), tried, size)
            line += f"   float32 {float32 * 1e6 / size:9.2f}   x {ours / float32:.1f}"
        typer.echo(line)
    for name, share in shares(plan, tried):
        typer.echo(f"{share:6.1%}  {name}")
    if plan.black_boxes:
        typer.echo(f"{black_box_share(plan, tried):6.1%}  in black boxes: {', '.join(plan.black_boxes)}")
    if (narrow or plan).error is not None:
        typer.echo(_off(narrow or plan))
    typer.echo(f"compiled while it ran: {compilations() - before}")


@app.command()
def learn(  # noqa: PLR0917  (typer: options)
    packed: Packed,
    labelled: Annotated[Path, typer.Option("--rows", help='JSON lines `{"text": "...", "label": ...}`, in order.')],
    out: Annotated[Path, typer.Option("-o", "--out", help="The `.plan` file to write.")],
    rate: Annotated[float, typer.Option(min=0, callback=finite, help="How far one row moves the weights.")] = 0.5,
    passes: Annotated[int, typer.Option(min=1, max=MOST, help="How often all rows are gone through.")] = 1,
    store: plan_store.Folder = None,
    thin: Annotated[bool, typer.Option("--thin", help="Without the arrays, which this machine's store has.")] = False,
) -> None:
    """Learn the head of a packed text plan further from labelled texts; its vocabularies and all else stay shared."""
    from streamserve.plan.learning import HeadLearner  # noqa: PLC0415  (numba takes a second)
    from streamserve.plan.packing import pack as write  # noqa: PLC0415  (as above)

    texts, labels = read_labelled(labelled)
    learner = HeadLearner(_loaded(packed, store, False), rate=rate)
    for number in range(1, passes + 1):
        learnt = learner.learn(texts, labels)
        typer.echo(f"pass {number}: {learnt.right} of {learnt.rows} rows right before they were learnt from")
    manifest = write(learner.plan(), out, plan_store.opened(store), thin=thin)
    typer.echo(f"{out}: plan {manifest['plan']}, {learner.changed} weights changed")


@app.command()
def stats(
    packed: Annotated[list[Path], typer.Argument(help="`.plan` files of one pool.")],
    trust_pickle: TrustPickle = False,
    store: plan_store.Folder = None,
    as_json: plan_store.AsJson = False,
) -> None:
    """Bytes of each plan, shared with the others and its own; and of those that take the same rows what runs once."""
    from streamserve.plan.packing import read_manifest  # noqa: PLC0415  (numba takes a second)
    from streamserve.plan.sharing import together  # noqa: PLC0415  (as above)

    sizes = {
        str(path): {digest: int(about["bytes"]) for digest, about in read_manifest(path)["objects"].items()}
        for path in packed
    }
    users = Counter(digest for held in sizes.values() for digest in held)
    plans = {
        name: {
            "bytes": sum(held.values()),
            "bytes_shared": sum(size for digest, size in held.items() if users[digest] > 1),
            "bytes_unique": sum(size for digest, size in held.items() if users[digest] == 1),
        }
        for name, held in sizes.items()
    }
    groups = together({str(path): _loaded(path, store, trust_pickle) for path in packed})
    lanes = [
        {
            "plans": len(group.plans),
            "stages_alone": sum(len(plan.graph.nodes) for plan in group.plans.values()),
            "stages_together": len(group.graph.nodes),
        }
        for group in groups
    ]
    if as_json:
        typer.echo(json.dumps({"plans": plans, "together": lanes}))
        return
    for name, held in plans.items():
        typer.echo(f"{held['bytes']:>14,}  {held['bytes_shared']:>14,} shared  {held['bytes_unique']:>14,} own  {name}")
    for lane in lanes:
        typer.echo(
            f"{lane['plans']} plans take the same rows: {lane['stages_together']} stages together, "
            f"{lane['stages_alone']} alone"
        )


def _estimator(source: str, trust_pickle: bool, trusted_types: list[str] | None) -> Any:
    spec = ModelSpec(
        name=Path(source).stem or source,
        version="fitted",
        source=source,
        trust_pickle=trust_pickle,
        trusted_types=tuple(trusted_types or ()),
    )
    require("numba", spec)
    return resolve(spec, Path.cwd()).obj


def _compiled(  # noqa: PLR0917  (as the commands have them)
    source: str,
    trust_pickle: bool,
    trusted_types: list[str] | None,
    disabled: list[str] | None,
    allow_untested: bool,
    rows: Path | None,
) -> tuple[Plan, Any]:
    estimator = _estimator(source, trust_pickle, trusted_types)
    from streamserve.plan.compile import Plan, compile_plan  # noqa: PLC0415  (numba takes a second)
    from streamserve.plan.importers import form_of  # noqa: PLC0415  (as above)

    if isinstance(estimator, Plan):  # made by a builder: nothing to compare it with
        return estimator, None
    given = read_rows(rows, form_of(estimator)) if rows else None
    return compile_plan(estimator, rows=given, disabled=disabled or (), allow_untested=allow_untested), estimator


def _narrowed(plan: Plan, rows: Path | None) -> Plan:
    from streamserve.plan.precision import narrowed  # noqa: PLC0415  (numba takes a second)

    return narrowed(plan, read_rows(rows, plan.graph.form) if rows else None)[0]


def _off(plan: Plan) -> str:
    return plan.error.words() if plan.error is not None else ""


def _verify_narrow(plan: Plan, packed: Path, fitted: str, estimator: Any, tried: Any) -> None:
    """Heads in float32: those that this estimator gives, to the bit; what they are off by is told."""
    from streamserve.plan.compile import compile_plan  # noqa: PLC0415  (numba takes a second)
    from streamserve.plan.precision import differing, narrowed  # noqa: PLC0415  (as above)

    again, error = narrowed(compile_plan(estimator, rows=tried), tried)
    wrong = differing(plan, again, tried)
    if wrong:
        raise PlanDiffers(f"{packed} is not {fitted} with heads in float32: {wrong}")
    typer.echo(f"what {fitted} gives with heads in float32, on {len(tried)} rows; {error.words()}")


def _loaded(packed: Path, store: Path | None, trust_pickle: bool) -> Plan:
    from streamserve.plan.packing import load  # noqa: PLC0415  (numba takes a second)

    return load(packed, plan_store.opened(store), trust_pickle=trust_pickle)
