r"""Whether a network is piecewise linear in every single parameter tensor, as its autograd graph shows it.

If it is, the diagonal blocks of its Hessian are those of the Gauss-Newton matrix, whatever the numbers. Every
operation between outputs and parameters must be known here: piecewise linear in all that it is given, or a product of
factors of which no two depend on the same parameter. That is sufficient, not necessary; of any other
operation nothing is said, and the blocks have to be compared by numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import Node

from cockpit.engine.derivatives.graph import edge


def _nodes(names: str) -> frozenset[str]:
    """Return the names of autograd's nodes of some operations, whatever overload was called."""
    return frozenset(f"{name}Backward{k}" for name in names.split() for k in range(5))


LINEAR = _nodes(
    # sums of what is given
    "Add Sub Rsub Neg Sum Mean Cumsum Trace "
    # places
    "View UnsafeView ReshapeAlias Reshape T Transpose Permute Movedim Expand Squeeze Unsqueeze Slice Select Narrow "
    "Split SplitWithSizes UnsafeSplit Unbind Chunk Cat Stack Clone Alias ToCopy Flip Roll Repeat AsStrided Diagonal "
    "Tril Triu Index IndexSelect Gather MaskedFill Where Unfold Im2Col Col2Im Embedding "
    "ConstantPadNd ReflectionPad1D ReflectionPad2D ReflectionPad3D ReplicationPad1D ReplicationPad2D ReplicationPad3D "
    "PixelShuffle PixelUnshuffle "
    # means and choices of neighbours
    "AvgPool1D AvgPool2D AvgPool3D AdaptiveAvgPool1D AdaptiveAvgPool2D AdaptiveAvgPool3D MkldnnAdaptiveAvgPool2D "
    "MaxPool2DWithIndices MaxPool3DWithIndices AdaptiveMaxPool2D AdaptiveMaxPool3D MkldnnMaxPool2D "
    "UpsampleNearest1D UpsampleNearest2D UpsampleNearest3D UpsampleLinear1D UpsampleBilinear2D UpsampleBicubic2D "
    # element by element
    "Relu LeakyRelu Threshold Hardtanh Clamp ClampMin ClampMax Abs Maximum Minimum Max Min NativeDropout"
)

PRODUCTS = _nodes("Mul Mm Addmm Bmm Baddbmm Addbmm Mv Addmv Dot Linear Convolution PreluKernel Addcmul")

QUOTIENTS = _nodes("Div")
"""Linear in what is divided; not in what it is divided by."""


def is_linear_in_each(outputs: Iterable[Tensor], parameters: Sequence[Tensor]) -> bool:
    """Say whether the graph of some outputs shows that they are piecewise linear in each of the parameters."""
    bits = {id(p): 1 << k for k, p in enumerate(parameters)}
    known: dict[Node, int] = {}
    """The parameters that a node's results depend on, as bits of a number."""
    waiting = [e[0] for e in map(edge, outputs) if e is not None]
    while waiting:
        node = waiting[-1]
        behind = [found for found, _ in node.next_functions if found is not None]
        fresh = [] if node in known else [found for found in behind if found not in known]
        if fresh:
            waiting += fresh
            continue
        waiting.pop()
        if node not in known:
            depends = _depends(node, [known[found] for found in behind], bits)
            if depends is None:
                return False
            known[node] = depends
    return True


def _depends(node: Node, behind: Sequence[int], bits: dict[int, int]) -> int | None:
    """Return the parameters that a node's results depend on, or None if that is not piecewise linear in each."""
    name, together, twice = node.name(), 0, False
    if name == "torch::autograd::AccumulateGrad":
        return bits.get(id(getattr(node, "variable", None)), 0)
    for each in behind:
        twice, together = twice or bool(together & each), together | each
    if not together:
        return 0
    linear = name in LINEAR or (name in QUOTIENTS and all(e is None for e, _ in node.next_functions[1:]))
    product = name in PRODUCTS and not twice
    native = not isinstance(node, BackwardCFunction)  # a function of the user's may have any name
    return together if native and (linear or product) else None
