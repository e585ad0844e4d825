"""A workload as packed plans in a store and as pickles, made one pipeline at a time, once for all sections of a run."""

from __future__ import annotations

import json
import pickle
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from benchmarks.plan_workloads import PIPELINES, planned
from streamserve.plan.compile import laid_out
from streamserve.plan.graph import Constant, Graph
from streamserve.plan.importers import import_fitted
from streamserve.plan.packing import pack
from streamserve.plan.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """Where a workload's models lie. Of the pipelines of one form, which weigh the same, one is pickled."""

    workload: str
    folder: str
    plans: tuple[str, ...]
    pickles: tuple[str, ...]
    """Of each model the pickle of its form."""
    seconds: float
    store_bytes: int
    unshared_bytes: int
    """What the store would hold with a copy for every plan."""
    pickle_bytes: tuple[int, int, int]
    """Of one pipeline: least, mean, most."""

    @property
    def store(self) -> str:
        return f"{self.folder}/store"


def packed(workload: str, scale: float, folder: Path) -> Packed:
    """The workload at this scale; taken as it is where `folder` has it already."""
    place = folder / f"{workload} {scale:g}".replace(" ", "-")
    about = place / "packed.json"
    if about.exists():
        kept = json.loads(about.read_text("utf-8"))
        return Packed(**{name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()})
    place.mkdir(parents=True, exist_ok=True)
    made = _made(workload, scale, place)
    about.write_text(json.dumps(asdict(made)), "utf-8")
    return made


def _made(workload: str, scale: float, place: Path) -> Packed:
    count, store, started = planned(scale), Store(place / "store"), time.perf_counter()
    plans, pickles, sizes = [], [], []
    imported: tuple[str, Graph] | None = None
    for i, (form, pipeline) in enumerate(PIPELINES[workload](count, scale)):
        file = place / f"{form.replace(' ', '-')}.pickle"
        if not file.exists():
            file.write_bytes(pickle.dumps(pipeline, protocol=pickle.HIGHEST_PROTOCOL))
        pickles.append(str(file))
        sizes.append(file.stat().st_size)
        of_form = imported is not None and imported[0] == form and isinstance(pipeline[-1], LogisticRegression)
        graph = with_head(imported[1], pipeline[-1]) if imported and of_form else import_fitted(pipeline).graph
        imported = form, graph
        plans.append(str(place / f"{i}.plan"))
        pack(laid_out(graph), Path(plans[-1]), store, thin=True)
    return Packed(
        workload=workload,
        folder=str(place),
        plans=tuple(plans),
        pickles=tuple(pickles),
        seconds=time.perf_counter() - started,
        store_bytes=sum(store.object_bytes().values()),
        unshared_bytes=sum(holding.bytes for holding in store.holdings()),
        pickle_bytes=(min(sizes), int(np.mean(sizes)), max(sizes)),
    )


def with_head(graph: Graph, head: LogisticRegression) -> Graph:
    """An imported sentiment pipeline's graph with another's weights: what importing that one gives, where both have
    the same vectorisers. Two million strings need not be read again for every pipeline."""
    weights: dict[str, Any] = {"coef": np.asarray(head.coef_), "intercept": np.asarray(head.intercept_)}
    fresh = {name: Constant(array) for name, array in weights.items()}
    nodes = tuple(replace(node, constants=fresh) if node.op == "linear" else node for node in graph.nodes)
    return Graph(nodes=nodes, outputs=graph.outputs, form=graph.form)
