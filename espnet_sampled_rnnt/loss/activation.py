"""Activations of the joint network: value and derivative on a chunk of nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

ElementwiseFunction = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Activation:
    """An elementwise function and how its derivative is applied.

    Attributes:
        name: for messages.
        function: (..., J) -> (..., J), elementwise.
        from_output: whether the derivative follows from the output alone. If so,
            the sum enc + dec need not be made again in the second pass.
    """

    name: str
    function: ElementwiseFunction
    from_output: bool

    def forward_(self, x: torch.Tensor) -> torch.Tensor:
        """Replace ``x`` by the activation of ``x`` and return it.

        Raises:
            ValueError: a callable that is not elementwise.
        """
        if self.name == "tanh":
            return torch.tanh_(x)
        if self.name == "relu":
            return torch.relu_(x)
        if self.name == "identity":
            return x
        value = self.function(x)
        # copy_ would broadcast what is not elementwise.
        if not isinstance(value, torch.Tensor) or value.shape != x.shape:
            made = getattr(value, "shape", type(value).__name__)
            raise ValueError(
                f"activation must be elementwise, but {self.name} makes "
                f"{made if isinstance(made, str) else tuple(made)} of {tuple(x.shape)}"
            )
        return x.copy_(value)

    def backward_(
        self,
        gradient: torch.Tensor,
        output: torch.Tensor,
        make_input: Callable[[], torch.Tensor],
    ) -> torch.Tensor:
        """Multiply ``gradient`` in place by the derivative, and return it.

        Args:
            gradient: (..., J) with respect to the activation's output.
            output: (..., J) the activation's output.
            make_input: gives the activation's input, (..., J), made anew; called
                only where the output does not determine the derivative.
        """
        if self.name == "tanh":
            return torch.ops.aten.tanh_backward.grad_input(
                gradient, output, grad_input=gradient
            )
        if self.name == "relu":
            return torch.ops.aten.threshold_backward.grad_input(
                gradient, output, 0.0, grad_input=gradient
            )
        if self.name == "identity":
            return gradient
        # Made before gradients are enabled: enc and dec may require one of their own.
        leaf = make_input().detach()
        with torch.enable_grad():
            leaf.requires_grad_()
            # The clone lets activations that work in place do so.
            value = self.function(leaf.clone())
            (result,) = torch.autograd.grad(value, leaf, gradient)
        return gradient.copy_(result)


def _flattened_swish(x: torch.Tensor) -> torch.Tensor:
    """x sigmoid(x) - 0.2 where that is >= 0, else -0.2: with a step, as in ESPnet."""
    shifted = x * torch.sigmoid(x) - 0.2
    return torch.where(shifted >= 0.0, shifted, -0.2)


_FROM_OUTPUT = {
    "tanh": torch.tanh,
    "relu": torch.relu,
    "identity": lambda x: x,
}
# The other names that ESPnet's JointNetwork offers, with its default parameters.
_BY_AUTOGRAD = {
    "hardtanh": torch.nn.functional.hardtanh,
    "leaky_relu": torch.nn.functional.leaky_relu,
    "mish": torch.nn.functional.mish,
    "selu": torch.nn.functional.selu,
    "swish": torch.nn.functional.silu,
    "ftswish": _flattened_swish,
    "smish": lambda x: x * torch.tanh(torch.log1p(torch.sigmoid(x))),
}
ACTIVATION_NAMES = (*_FROM_OUTPUT, *_BY_AUTOGRAD)
_MODULES = {torch.nn.Tanh: "tanh", torch.nn.ReLU: "relu", torch.nn.Identity: "identity"}


def resolve_activation(activation: str | ElementwiseFunction) -> Activation:
    """Turn a name or an elementwise callable into an :class:`Activation`.

    Raises:
        ValueError: unknown name, neither name nor callable, or a module with
            parameters to train (they would get no gradient).
    """
    if type(activation) in _MODULES:
        activation = _MODULES[type(activation)]
    if isinstance(activation, str):
        if activation in _FROM_OUTPUT:
            return Activation(activation, _FROM_OUTPUT[activation], from_output=True)
        if activation in _BY_AUTOGRAD:
            return Activation(activation, _BY_AUTOGRAD[activation], from_output=False)
        raise ValueError(
            f"activation {activation!r} is not known; known names: "
            f"{', '.join(ACTIVATION_NAMES)}; any elementwise callable works too"
        )
    if not callable(activation):
        raise ValueError(
            f"activation must be a name or an elementwise callable, "
            f"but is {activation!r}"
        )
    if isinstance(activation, torch.nn.Module) and any(
        p.requires_grad for p in activation.parameters()
    ):
        raise ValueError(
            f"activation {type(activation).__name__} has parameters to train, which "
            f"would get no gradient here; freeze them or use one without"
        )
    name = getattr(activation, "__name__", type(activation).__name__)
    return Activation(f"callable {name}", activation, from_output=False)
