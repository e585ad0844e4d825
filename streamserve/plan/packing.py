"""Packed plans: `.plan` files, and plans from and to a store.

A `.plan` is a zip archive, uncompressed: `manifest.json` and, unless it is thin, `objects/HASH.npy`. The manifest holds
the graph with constants by their hashes, versions, and the hash of itself; no part of it is code, and no part is a
pickle but those that `--trust-pickle` put in and `trust_pickle` lets out. Loading puts what is missing into the store
and maps it from there.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from streamserve.errors import PlanDamaged, StoreError
from streamserve.plan.compile import Plan
from streamserve.plan.foreign import ForeignModel, is_foreign, restored
from streamserve.plan.graph import DIGEST_BYTES, Constant, Graph, InputForm, Node
from streamserve.plan.operators import OPERATORS
from streamserve.plan.physical import Layout
from streamserve.plan.precision import Error
from streamserve.plan.store import Store, as_object

#: Written for plans with heads in float32, so that code which would read them as float64 refuses them; else the first.
FORMAT, _FIRST_FORMAT = 2, 1
_KIND = "streamserve.plan"
_MANIFEST = "manifest.json"
Manifest = dict[str, Any]


def manifest_of(plan: Plan, *, name: str = "", trust_pickle: bool = False) -> tuple[Manifest, dict[str, Constant]]:
    """The plan's manifest, and its objects by hash. Raises `ImportRefused` for a black box that must be pickled."""
    objects = {constant.digest: constant for constant in plan.graph.constants()}
    opaque: dict[str, dict[str, Any]] = {}
    packed: dict[int, dict[str, Any]] = {}
    for i, node in enumerate(plan.graph.nodes):
        if node.op != "opaque":
            continue
        if id(node.opaque) not in packed:
            data, how = _dumped(node, trust_pickle=trust_pickle)
            constant = Constant(as_object(data))
            objects[constant.digest] = constant
            packed[id(node.opaque)] = {"object": constant.digest, **how}
        opaque[str(i)] = packed[id(node.opaque)]
    manifest: Manifest = {
        "kind": _KIND,
        "format": _FIRST_FORMAT if plan.error is None else FORMAT,
        "name": name,
        "plan": plan.digest,
        "versions": dict(plan.versions),
        "rules": [fired.rule.name for fired in plan.fired] or list(plan.rules),
        "black_boxes": dict(plan.black_boxes),
        "graph": _graph_as_data(plan.graph),
        "opaque": opaque,
        "choice": {str(node): list(names) for node, names in plan.layout.choice.items()},
        "objects": {
            digest: {"dtype": constant.array.dtype.str, "shape": list(constant.array.shape), "bytes": constant.nbytes}
            for digest, constant in sorted(objects.items())
        },
    }
    if plan.error is not None:
        manifest["error_of_float32"] = asdict(plan.error)
    manifest["signature"] = _signature(manifest)
    return manifest, objects


def keep(plan: Plan, store: Store, *, name: str = "", trust_pickle: bool = False) -> Manifest:
    """Put a plan into a store. Raises `StoreError`, and `ImportRefused` as `manifest_of` does."""
    manifest, objects = manifest_of(plan, name=name, trust_pickle=trust_pickle)
    _keep(manifest, objects, store)
    return manifest


def _keep(manifest: Manifest, objects: Mapping[str, Constant], store: Store) -> None:
    with store.writing():
        for constant in objects.values():
            store.put(constant)
        store.register(manifest["signature"], manifest)


def pack(
    plan: Plan, path: Path, store: Store, *, name: str = "", thin: bool = False, trust_pickle: bool = False
) -> Manifest:
    """Write a `.plan` and keep the plan in the store; `thin`: without the objects, which that store then has.

    Raises `StoreError` where either cannot be written; the file is whole or not there.
    """
    manifest, objects = manifest_of(plan, name=name or path.stem, trust_pickle=trust_pickle)
    _keep(manifest, objects, store)
    part = path.with_name(f".{path.name}.part")
    try:
        with part.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
                archive.writestr(zipfile.ZipInfo(_MANIFEST), json.dumps(manifest, indent=1, sort_keys=True))
                for digest, constant in [] if thin else sorted(objects.items()):
                    buffer = io.BytesIO()
                    np.save(buffer, constant.array, allow_pickle=False)
                    archive.writestr(zipfile.ZipInfo(_member(digest)), buffer.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    except OSError as trouble:
        part.unlink(missing_ok=True)
        raise StoreError(f"{path} cannot be written: {trouble.strerror or trouble}") from trouble
    return manifest


def load(path: Path, store: Store, *, trust_pickle: bool = False) -> Plan:
    """The plan of a `.plan` file; objects that the store lacks are put there first, their hashes compared.

    Raises `PlanDamaged` for a file that is truncated, altered or of a future format, `StoreError` where an object is
    missing and cannot be written, `ImportRefused` for a pickled black box that is not trusted.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            manifest = _read_manifest(archive, path)
            missing = [digest for digest in manifest["objects"] if not store.has(digest)]
            if missing:
                _keep(manifest, {digest: _read_object(archive, digest, path) for digest in missing}, store)
    except FileNotFoundError:
        raise PlanDamaged(f"no file {path}") from None
    except (zipfile.BadZipFile, EOFError, OSError) as broken:
        raise PlanDamaged(f"{path} is truncated or no packed plan ({broken}); pack it again") from broken
    return from_manifest(manifest, store, str(path), trust_pickle=trust_pickle)


def stored(digest: str, store: Store) -> Plan:
    """The plan whose manifest has this hash, from a store. Raises as `load`."""
    manifest = dict(store.manifest(digest))
    if manifest.get("signature") != digest or _signature(manifest) != digest:
        raise PlanDamaged(f"plan {digest} of the store {store.folder} was altered; pack it again")
    return from_manifest(manifest, store, f"plan {digest} of the store {store.folder}")


def read_manifest(path: Path) -> Manifest:
    """The manifest of a `.plan` file, its signature checked. Raises `PlanDamaged`."""
    try:
        with zipfile.ZipFile(path) as archive:
            return _read_manifest(archive, path)
    except FileNotFoundError:
        raise PlanDamaged(f"no file {path}") from None
    except (zipfile.BadZipFile, EOFError, OSError) as broken:
        raise PlanDamaged(f"{path} is truncated or no packed plan ({broken}); pack it again") from broken


def _read_manifest(archive: zipfile.ZipFile, path: Path) -> Manifest:
    try:
        manifest = json.loads(archive.read(_MANIFEST))
    except KeyError:
        raise PlanDamaged(f"{path} holds no {_MANIFEST}: it is no packed plan") from None
    except ValueError as broken:
        raise PlanDamaged(f"{path}: its manifest is no JSON ({broken}); pack it again") from broken
    return checked(manifest, str(path))


def checked(manifest: Any, where: str) -> Manifest:
    """The manifest, if it is one that this code reads and is unaltered. Raises `PlanDamaged`."""
    if not isinstance(manifest, dict) or manifest.get("kind") != _KIND:
        raise PlanDamaged(f"{where} is no manifest of a plan")
    if manifest.get("format") not in {_FIRST_FORMAT, FORMAT}:
        raise PlanDamaged(
            f"{where} has format {manifest.get('format')!r}, this version of streamserve reads up to {FORMAT}; pack "
            "the plan again with this one, or serve it with the one that packed it"
        )
    if manifest.get("signature") != _signature(manifest):
        raise PlanDamaged(f"{where}: its manifest does not have the hash that it says: it was altered; pack it again")
    return manifest


def _read_object(archive: zipfile.ZipFile, digest: str, path: Path) -> Constant:
    try:
        data = archive.read(_member(digest))
        constant = Constant(np.load(io.BytesIO(data), allow_pickle=False))
    except KeyError:
        raise PlanDamaged(
            f"{path} is thin, and this machine's store lacks its object {digest}; pack it whole, or name the store "
            "that has it"
        ) from None
    except ValueError as broken:
        raise PlanDamaged(f"{path}: its object {digest} is no array ({broken}); pack it again") from broken
    if constant.digest != digest:
        raise PlanDamaged(f"{path}: its object {digest} has another hash, {constant.digest}; pack it again")
    return constant


def from_manifest(manifest: Manifest, store: Store, where: str, *, trust_pickle: bool = False) -> Plan:
    """The plan that a manifest describes, its constants mapped from the store. Raises as `load` does."""
    opened: dict[str, Any] = {}
    nodes = []
    try:
        for i, data in enumerate(manifest["graph"]["nodes"]):
            opaque = manifest["opaque"].get(str(i))
            if opaque is not None and opaque["object"] not in opened:
                raw = store.get(opaque["object"]).array.tobytes()
                opened[opaque["object"]] = _opened(
                    opaque, raw, f"{where}, {data['origin']}", manifest["versions"], trust_pickle=trust_pickle
                )
            nodes.append(_node(data, store, opened[opaque["object"]] if opaque else None, where))
        form = manifest["graph"]["form"]
        graph = Graph(
            nodes=tuple(nodes),
            outputs=manifest["graph"]["outputs"],
            form=InputForm(kind=form["kind"], columns=form["columns"], names=tuple(form["names"])),
        )
        choice = {int(node): tuple(names) for node, names in manifest["choice"].items()}
        layout = Layout(graph, choice)
        error = Error(**manifest["error_of_float32"]) if "error_of_float32" in manifest else None
    except (KeyError, TypeError, ValueError) as broken:
        raise PlanDamaged(f"{where}: its manifest is signed, but makes no plan ({broken!r})") from broken
    return Plan(
        graph=graph,
        layout=layout,
        black_boxes=manifest["black_boxes"],
        versions=manifest["versions"],
        rules=tuple(manifest["rules"]),
        error=error,
    )


def _dumped(node: Node, *, trust_pickle: bool) -> tuple[bytes, dict[str, Any]]:
    """A black box as bytes, and what the manifest says of them."""
    if isinstance(node.opaque, ForeignModel):
        return node.opaque.data, {"form": node.opaque.form, "about": dict(node.opaque.about)}
    from streamserve.plan.importers.opaque import dump  # noqa: PLC0415  (needs scikit-learn)

    form, data = dump(node.opaque, node.origin, trust_pickle=trust_pickle)
    return data, {"form": form}


def _opened(
    opaque: Mapping[str, Any], data: bytes, where: str, versions: Mapping[str, str], *, trust_pickle: bool
) -> Any:
    if is_foreign(opaque["form"]):
        return restored(opaque["form"], data, opaque["about"], where)
    from streamserve.plan.importers.opaque import undump  # noqa: PLC0415  (needs scikit-learn)

    return undump(opaque["form"], data, where, versions, trust_pickle=trust_pickle)


def _graph_as_data(graph: Graph) -> dict[str, Any]:
    return {
        "form": {"kind": graph.form.kind, "columns": graph.form.columns, "names": list(graph.form.names)},
        "outputs": dict(graph.outputs),
        "nodes": [
            {
                "op": node.op,
                "inputs": list(node.inputs),
                "params": dict(node.params),
                "constants": {name: constant.digest for name, constant in node.constants.items()},
                "origin": node.origin,
            }
            for node in graph.nodes
        ],
    }


def _node(data: Mapping[str, Any], store: Store, opaque: Any, where: str) -> Node:
    if data["op"] not in OPERATORS:
        raise PlanDamaged(f"{where}: no operator is called {data['op']!r} here; it was packed by a newer streamserve")
    return Node(
        op=data["op"],
        inputs=tuple(data["inputs"]),
        params={name: _param(value) for name, value in data["params"].items()},
        constants={name: store.get(digest) for name, digest in data["constants"].items()},
        opaque=opaque,
        origin=data["origin"],
    )


def _param(value: Any) -> Any:
    return tuple(_param(one) for one in value) if isinstance(value, list) else value


def _member(digest: str) -> str:
    return f"objects/{digest}.npy"


def _signature(manifest: Mapping[str, Any]) -> str:
    body = {name: value for name, value in manifest.items() if name != "signature"}
    data = json.dumps(body, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).hexdigest()
