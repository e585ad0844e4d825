"""A plan in words: the graph before the rules, after each rule that fired, and its stages; and as a Mermaid picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from streamserve.plan.compile import Plan
from streamserve.plan.graph import Graph, Node
from streamserve.plan.physical import SIZES, variants_of
from streamserve.plan.rules import RULES

_MOST_CHARACTERS = 60
_KIB = 1024
#: Parameters that say nothing to a reader.
_HIDDEN = frozenset({"identity", "why"})


def explain(plan: Plan) -> str:
    """The whole story as text."""
    parts = [f"plan {plan.digest}: {_outputs(plan.graph)}"]
    if plan.imported is not None:
        parts.append(f"as imported\n{as_text(plan.imported)}")
        parts += [f"after {fired.rule.name}: {fired.rule.words}\n{as_text(fired.graph)}" for fired in plan.fired]
    elif plan.rules:
        words = {rule.name: rule.words for rule in RULES}
        fired = "\n".join(f"  {name}: {words.get(name, 'a rule of another version')}" for name in plan.rules)
        parts.append(f"rules that fired where it was packed\n{fired}")
    parts.append(f"stages\n{stages(plan)}")
    if plan.error is not None:
        parts.append(plan.error.words())
    if plan.black_boxes:
        lines = "\n".join(f"  {origin or 'the model'}: {why}" for origin, why in plan.black_boxes.items())
        parts.append(f"black boxes\n{lines}")
    return "\n\n".join(parts) + "\n"


def as_text(graph: Graph) -> str:
    """A line a node: its number, operator, what it reads, parameters and constants."""
    answers = {node: name for name, node in graph.outputs.items()}
    lines = []
    for i, node in enumerate(graph.nodes):
        reads = ", ".join(f"%{source}" for source in node.inputs)
        details = "  ".join(_details(node))
        where = f"  <- {node.origin}" if node.origin else ""
        answer = f"  => {answers[i]}" if i in answers else ""
        lines.append(f"  %{i} = {node.op}({reads})  {details}{where}{answer}".replace("  " * 2, "  ").rstrip())
    return "\n".join(lines)


def stages(plan: Plan) -> str:
    """A line a stage: the operator and the variant that runs it for each batch size."""
    lines = []
    for i, node in enumerate(plan.graph.nodes):
        names = plan.layout.choice[i]
        if len(variants_of(node)) == 1:
            how = names[0]
        else:
            how = ", ".join(f"{name} up to {size} rows" for name, size in zip(names, SIZES, strict=True))
        lines.append(f"  %{i} {node.op}: {how}")
    return "\n".join(lines)


def as_mermaid(graph: Graph) -> str:
    """A flowchart, to be put into Markdown as it is."""
    lines = ["flowchart LR"]
    for i, node in enumerate(graph.nodes):
        label = "<br/>".join([node.op, *(_quoted(detail) for detail in _details(node)[:3])])
        lines.append(f'  n{i}["{label}"]')
        lines += [f"  n{source} --> n{i}" for source in node.inputs]
    for name, node_index in graph.outputs.items():
        lines += [f"  {name}([{name}])", f"  n{node_index} --> {name}"]
    return "\n".join(lines) + "\n"


def _details(node: Node) -> list[str]:
    return [*_params(node.params), *_constants(node)]


def _params(params: Mapping[str, object]) -> Iterator[str]:
    for name, value in params.items():
        if name in _HIDDEN or value is None or value is False or value == ():
            continue
        text = str(list(value)) if isinstance(value, tuple) else str(value)
        yield f"{name}={text if len(text) <= _MOST_CHARACTERS else text[: _MOST_CHARACTERS - 3] + '...'}"


def _constants(node: Node) -> Iterator[str]:
    for name, constant in node.constants.items():
        shape = "x".join(str(size) for size in constant.array.shape) or "1"
        yield f"{name}: {constant.array.dtype}[{shape}] {_size(constant.nbytes)} {constant.digest[:8]}"


def _size(size: int) -> str:
    return f"{size} B" if size < _KIB else f"{size / _KIB:.1f} KiB" if size < _KIB**2 else f"{size / _KIB**2:.1f} MiB"


def _outputs(graph: Graph) -> str:
    names = ", ".join(graph.outputs)
    takes = "texts" if graph.form.kind == "text" else f"rows of {graph.form.columns} columns"
    return f"takes {takes}, answers {names}"


def _quoted(text: str) -> str:
    """Text that Mermaid takes inside quotes."""
    return (
        text.replace("&", "&amp;")
        .replace('"', "&quot;")
        .replace("<", "&lt;")
        .replace(">", "&gt;")
        .replace("#", "&#35;")
    )
