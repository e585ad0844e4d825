"""A plan as a graph of operators: immutable, hashed by content, in topological order.

A node names an operator (`streamserve.plan.operators` says what it means), the nodes it reads, small parameters and
large constants. Two nodes of equal operator, parameters, constants and inputs have equal hashes: that is what makes
equal parts of different models one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np

from streamserve.core.messages import AnyArray

#: Bytes of a content hash; 16 make an accidental equal pair among 2^40 objects a matter of 2^-49.
DIGEST_BYTES = 16
#: What a parameter may be: everything that JSON gives back unchanged (tuples as lists).
Param = None | bool | int | float | str | tuple["Param", ...]


class Constant:
    """An array of a node, read-only, known by the hash of its dtype, shape and bytes."""

    __slots__ = ("__dict__", "__weakref__", "array")

    def __init__(self, array: AnyArray, digest: str | None = None) -> None:
        """`digest`: its hash where it is known already, as for one read from a store."""
        if array.dtype == object:
            raise TypeError("a constant holds numbers or bytes; text goes into parameters or an arena")
        kept = np.ascontiguousarray(array).reshape(array.shape)
        if kept.flags.writeable:
            kept = kept.view()
            kept.flags.writeable = False
        self.array: AnyArray = kept
        if digest is not None:
            self.__dict__["digest"] = digest

    @cached_property
    def digest(self) -> str:
        """Hex digits of the content hash."""
        return array_digest(self.array)

    @property
    def nbytes(self) -> int:
        return int(self.array.nbytes)


def array_digest(array: AnyArray) -> str:
    """The content hash of an array: dtype with byte order, shape, bytes in C order."""
    head = json.dumps([array.dtype.newbyteorder("<").str, list(array.shape)]).encode()
    digest = hashlib.blake2b(head, digest_size=DIGEST_BYTES)
    plain = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    digest.update(plain.reshape(-1).view(np.uint8).data if plain.size else b"")
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Node:
    """One operator with all that it needs beside its inputs."""

    op: str
    inputs: tuple[int, ...] = ()
    """Indices of earlier nodes of the same graph."""
    params: Mapping[str, Param] = field(default_factory=dict)
    constants: Mapping[str, Constant] = field(default_factory=dict)
    opaque: Any = None
    """A black box's object; None for every other operator."""
    origin: str = ""
    """Where it comes from in the estimator, as `features / words`; not part of its identity."""

    def param(self, name: str) -> Any:
        """A parameter's value; KeyError for an unknown one."""
        return self.params[name]

    def array(self, name: str) -> Any:
        """A constant's array."""
        return self.constants[name].array

    def own_key(self) -> str:
        """Operator, parameters and constants as text: equal for nodes that do the same to what they read."""
        constants = {name: constant.digest for name, constant in sorted(self.constants.items())}
        return json.dumps([self.op, dict(sorted(self.params.items())), constants], sort_keys=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class InputForm:
    """What a row of a plan's input is."""

    kind: str
    """`text` (one string a row) or `columns` (numbers, or mixed values, one a column)."""
    columns: int = 0
    """How many, where `kind` is `columns`."""
    names: tuple[str, ...] = ()
    """Of the columns, where the estimator was fitted on a frame."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Nodes, every one after those it reads, and which of them are answers."""

    nodes: tuple[Node, ...]
    outputs: Mapping[str, int]
    """`predict`, `predict_proba`, `decision_function` -> node."""
    form: InputForm

    def __post_init__(self) -> None:
        for i, node in enumerate(self.nodes):
            if any(not 0 <= source < i for source in node.inputs):
                raise ValueError(f"node {i} ({node.op}) reads {node.inputs}: only earlier nodes can be read")
        if any(not 0 <= node < len(self.nodes) for node in self.outputs.values()):
            raise ValueError("an output names no node of the graph")
        object.__setattr__(self, "outputs", MappingProxyType(dict(self.outputs)))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The content hash of every node, its inputs included."""
        keys: list[str] = []
        for node in self.nodes:
            whole = json.dumps([node.own_key(), [keys[source] for source in node.inputs]])
            keys.append(hashlib.blake2b(whole.encode(), digest_size=DIGEST_BYTES).hexdigest())
        return tuple(keys)

    @cached_property
    def digest(self) -> str:
        """The content hash of the whole graph."""
        named = {name: self.keys[node] for name, node in sorted(self.outputs.items())}
        whole = json.dumps([named, self.form.kind, self.form.columns, self.form.names])
        return hashlib.blake2b(whole.encode(), digest_size=DIGEST_BYTES).hexdigest()

    def readers(self) -> list[list[int]]:
        """For every node those that read it, as often as they do."""
        readers: list[list[int]] = [[] for _ in self.nodes]
        for i, node in enumerate(self.nodes):
            for source in node.inputs:
                readers[source].append(i)
        return readers

    def needed(self, outputs: Iterable[str]) -> list[int]:
        """The nodes that these outputs need, in order."""
        wanted = {self.outputs[name] for name in outputs}
        for i in range(len(self.nodes) - 1, -1, -1):
            if i in wanted:
                wanted.update(self.nodes[i].inputs)
        return sorted(wanted)

    def constants(self) -> Iterator[Constant]:
        """Every distinct constant once."""
        seen: set[str] = set()
        for node in self.nodes:
            for constant in node.constants.values():
                if constant.digest not in seen:
                    seen.add(constant.digest)
                    yield constant


class Builder:
    """Makes a graph node by node; `add` gives the node's index, to be read by later ones.

    This is also the way to write a plan without scikit-learn::

        builder = Builder(InputForm(kind="columns", columns=2))
        by = {"by": np.array([2.0, 3.0])}
        scaled = builder.add("divide", [builder.source], params={"narrow": False}, constants=by)
        graph = builder.graph({"predict": scaled})
        plan = laid_out(graph)  # streamserve.plan.compile

    Models of other frameworks go in as black boxes: `streamserve.plan.foreign`.
    """

    def __init__(self, form: InputForm) -> None:
        self.form = form
        self.nodes: list[Node] = []
        self.source = self.add("source", params={"kind": form.kind, "columns": form.columns})

    def add(
        self,
        op: str,
        inputs: Iterable[int] = (),
        *,
        params: Mapping[str, Param] | None = None,
        constants: Mapping[str, AnyArray | Constant] | None = None,
        opaque: Any = None,
        origin: str = "",
    ) -> int:
        """Append a node and say its index."""
        wrapped = {
            name: value if isinstance(value, Constant) else Constant(value) for name, value in (constants or {}).items()
        }
        self.nodes.append(
            Node(
                op=op,
                inputs=tuple(inputs),
                params=MappingProxyType(dict(params or {})),
                constants=MappingProxyType(wrapped),
                opaque=opaque,
                origin=origin,
            )
        )
        return len(self.nodes) - 1

    def black_box(
        self, model: Any, method: str, inputs: Iterable[int], *, origin: str, why: str = "", identity: str = ""
    ) -> int:
        """Append a black box: `method` of an object, called with what it reads. -> its index.

        `model`: one of `streamserve.plan.foreign`, or any object with that method, which `identity` then tells from
        others (left out: only itself is equal).
        """
        params = {
            "method": method,
            "kind": str(getattr(model, "kind", "")) or type(model).__name__,
            "identity": identity or str(getattr(model, "digest", "")) or f"object {id(model)}",
            "why": why or f"{getattr(model, 'kind', type(model).__name__)} as given",
        }
        return self.add("opaque", inputs, params=params, opaque=model, origin=origin)

    def graph(self, outputs: Mapping[str, int]) -> Graph:
        """The finished graph, without nodes that no output needs. Raises ValueError for a reference to nothing."""
        return pruned(Graph(nodes=tuple(self.nodes), outputs=outputs, form=self.form))


def pruned(graph: Graph) -> Graph:
    """The graph without nodes that no output needs."""
    kept = graph.needed(graph.outputs)
    place = {old: new for new, old in enumerate(kept)}
    nodes = tuple(
        replace(graph.nodes[old], inputs=tuple(place[source] for source in graph.nodes[old].inputs)) for old in kept
    )
    outputs = {name: place[node] for name, node in graph.outputs.items()}
    return Graph(nodes=nodes, outputs=outputs, form=graph.form)


def rebuilt(graph: Graph, replacement: Mapping[int, tuple[Node, ...]]) -> Graph:
    """The graph with nodes put in the place of some.

    Each replacement is a chain: its members' inputs are indices of the old graph, or negative for members of the same
    chain (-1: its first, -2: its second). The last one stands for the old node.
    """
    nodes: list[Node] = []
    place: dict[int, int] = {}
    for old, node in enumerate(graph.nodes):
        first = len(nodes)
        for member in replacement.get(old, (node,)):
            inputs = tuple(place[source] if source >= 0 else first - source - 1 for source in member.inputs)
            nodes.append(replace(member, inputs=inputs))
        place[old] = len(nodes) - 1
    outputs = {name: place[node] for name, node in graph.outputs.items()}
    return pruned(Graph(nodes=tuple(nodes), outputs=outputs, form=graph.form))
