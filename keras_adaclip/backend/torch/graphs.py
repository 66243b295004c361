"""Graphs of PyTorch's own operations, made shorter: each operation costs some microseconds.

What is the same for every input is computed once, views of the whole go, and arithmetic on large
tensors writes over what nobody else reads: memory that is asked for anew costs more than the sum.
"""

from typing import Any

import torch

Tensor = Any
_aten = torch.ops.aten
_NOTHING_BUT_A_VIEW = (_aten.detach.default, _aten.alias.default)
# A number that the function itself has made into a tensor.
_OF_NUMBERS = (_aten.lift_fresh.default, _aten.lift_fresh_copy.default)
# What they return follows from the shapes of what they are given.
_OF_SHAPES = (_aten.ones_like.default, _aten.zeros_like.default, _aten.scalar_tensor.default)
# The same, written to memory that is given.
_WRITING = {
    _aten.add.Tensor: _aten.add.out,
    _aten.mul.Tensor: _aten.mul.out,
    _aten.sub.Tensor: _aten.sub.out,
}
# What they return is in memory of its own.
_IN_OWN_MEMORY = {*_WRITING, *_WRITING.values(), _aten.mm.default, _aten.addmm.default}


def shorten(module: torch.fx.GraphModule, values: list[Tensor]) -> None:
    """Makes a graph shorter that changes nothing in place; another one stays as it is.

    Args:
        module: holds the graph.
        values: what it may be called with.
    """
    graph = module.graph
    if any(_changes_in_place(node) for node in graph.nodes):
        return
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in _NOTHING_BUT_A_VIEW:
            node.replace_all_uses_with(node.args[0])
        elif _is_transposed(node) and _is_transposed(node.args[0]):
            node.replace_all_uses_with(node.args[0].args[0])
    graph.eliminate_dead_code()
    seen = _Seen(module)
    seen.run(*values)
    for number, (node, value) in enumerate(seen.constants.items()):
        name = f"_constant_{number}"
        module.register_buffer(name, value)
        with graph.inserting_before(node):
            node.replace_all_uses_with(graph.get_attr(name))
    (output,) = graph.find_nodes(op="output")
    for node in [node for node in output.all_input_nodes if node.op == "get_attr"]:
        # Whoever gets it may write to it.
        with graph.inserting_before(output):
            output.replace_input_with(node, graph.call_function(_aten.clone.default, (node,)))
    graph.eliminate_dead_code()
    _write_over(graph, seen.results)
    module.recompile()


def _write_over(graph: torch.fx.Graph, results: dict[torch.fx.Node, Tensor]) -> None:
    """Lets sums and products be written to the memory of an operand that nobody else reads.

    Args:
        graph: without dead code.
        results: a description of what each operation returns.
    """
    for node in list(graph.nodes):
        if node.op != "call_function" or node.target not in _WRITING:
            continue
        for operand in node.all_input_nodes:
            is_free = operand.target in _IN_OWN_MEMORY and len(operand.users) == 1
            if is_free and _is_alike(results.get(operand), results.get(node)):
                node.target = _WRITING[node.target]
                node.kwargs = {**node.kwargs, "out": operand}
                results[node] = results[operand]
                break


def _is_alike(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two lie in memory in the same way; they are of the device `meta`, without numbers."""
    if one is None or other is None:
        return False
    is_dense = one.is_contiguous() and other.is_contiguous()
    return is_dense and one.shape == other.shape and one.dtype == other.dtype


def _is_transposed(node: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.target is _aten.t.default


def _changes_in_place(node: torch.fx.Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return schema is not None and bool(schema.is_mutable)


def _is_random(node: torch.fx.Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


class _Seen(torch.fx.Interpreter):
    """Runs a graph, and sees what each operation returns, and which tensors depend on no input.

    A tensor that was there before, such as a variable that no input stands for, is not constant.

    Attributes:
        constants: what is the same for every input.
        results: of each operation that returns a tensor its like without numbers.
    """

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.constants: dict[torch.fx.Node, Tensor] = {}
        self.results: dict[torch.fx.Node, Tensor] = {}
        self._fixed: set[torch.fx.Node] = set()

    def run_node(self, node: torch.fx.Node) -> Any:
        """Runs one operation."""
        value = super().run_node(node)
        if node.op == "call_function" and isinstance(value, torch.Tensor):
            self.results[node] = value.to("meta")
        if self._is_fixed(node):
            self._fixed.add(node)
            if node in self.results:
                self.constants[node] = value.clone()
        return value

    def _is_fixed(self, node: torch.fx.Node) -> bool:
        if node.op != "call_function" or _is_random(node):
            return False
        if node.target in _OF_NUMBERS or node.target in _OF_SHAPES:
            return True
        return self._fixed.issuperset(node.all_input_nodes)
