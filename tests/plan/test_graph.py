"""Graphs are values: hashed by content, immutable, in order."""

from __future__ import annotations

import numpy as np
import pytest

from streamserve.plan.graph import Builder, Constant, InputForm, Node, array_digest, rebuilt

FORM = InputForm(kind="columns", columns=2)


def dividing(by: list[float], origin: str = "", dtype: str = "f8") -> Builder:
    builder = Builder(FORM)
    builder.add("divide", [builder.source], constants={"by": np.array(by, dtype=dtype)}, origin=origin)
    return builder


def test_equal_content_has_equal_hashes_wherever_it_comes_from() -> None:
    one, other = dividing([2, 3], origin="here"), dividing([2, 3], origin="there")
    assert one.graph({"predict": 1}).digest == other.graph({"predict": 1}).digest


@pytest.mark.parametrize(
    "other", [dividing([2, 4]), dividing([2, 3], dtype="f4"), dividing([[2, 3]])], ids=["value", "dtype", "shape"]
)
def test_other_constants_have_other_hashes(other: Builder) -> None:
    assert other.graph({"predict": 1}).digest != dividing([2, 3]).graph({"predict": 1}).digest


def test_byte_order_and_strides_are_no_content() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert array_digest(array) == array_digest(array.astype(">f8")) == array_digest(np.asfortranarray(array))
    assert array_digest(array) != array_digest(array.T)


def test_what_a_node_reads_is_part_of_it() -> None:
    builder = Builder(FORM)
    first = builder.add("divide", [builder.source], constants={"by": np.array([2.0, 3.0])})
    second = builder.add("divide", [first], constants={"by": np.array([2.0, 3.0])})
    graph = builder.graph({"predict": second})
    assert graph.keys[first] != graph.keys[second]


def test_a_constant_cannot_be_written() -> None:
    constant = Constant(np.zeros(3))
    with pytest.raises(ValueError, match="read-only"):
        constant.array[0] = 1
    with pytest.raises(TypeError, match="numbers or bytes"):
        Constant(np.array(["a", None], dtype=object))


def test_only_earlier_nodes_can_be_read() -> None:
    builder = Builder(FORM)
    builder.add("divide", [1], constants={"by": np.ones(2)})
    with pytest.raises(ValueError, match="only earlier nodes"):
        builder.graph({"predict": 1})
    with pytest.raises(ValueError, match="names no node"):
        Builder(FORM).graph({"predict": 3})


def test_what_no_output_needs_is_left_out() -> None:
    builder = dividing([2, 3])
    builder.add("divide", [builder.source], constants={"by": np.ones(2)})
    assert [node.op for node in builder.graph({"predict": 1}).nodes] == ["source", "divide"]


def test_a_chain_takes_the_place_of_a_node() -> None:
    builder = dividing([2, 3])
    last = builder.add("factor", [1], params={"by": 2.0})
    graph = builder.graph({"predict": last})
    chain = (Node(op="factor", inputs=(0,), params={"by": 3.0}), Node(op="factor", inputs=(-1,), params={"by": 5.0}))
    after = rebuilt(graph, {1: chain})
    assert [(node.op, node.inputs) for node in after.nodes] == [
        ("source", ()),
        ("factor", (0,)),
        ("factor", (1,)),
        ("factor", (2,)),
    ]
    assert after.outputs == {"predict": 3}
