"""The models of the suite as PyTorch modules, of layers that Opacus has rules for.

Two things differ from what one would write without Opacus. Attention is written of `nn.Linear` and
PyTorch's fused attention, since Opacus refuses `nn.MultiheadAttention` and its own is slower. The
LSTM is PyTorch's for the plain step and Opacus's for the private ones; either has two biases, of
which one is frozen, as Keras has one.
"""

from collections.abc import Callable

import numpy as np
import torch
from suite import LENGTH, LSTM_UNITS, LSTM_WIDTH, VOCABULARY, WIDTH
from torch import Tensor, nn
from torch.nn import functional


def channels_first(inputs: np.ndarray) -> np.ndarray:
    """Images as PyTorch has them, and tokens as they are.

    Args:
        inputs: `(rows, height, width, channels)`, or other data.
    """
    if inputs.ndim == 4:
        return np.ascontiguousarray(inputs.transpose(0, 3, 1, 2))
    return inputs.astype("int64") if inputs.dtype == np.int32 else inputs


def _fashion_mnist_cnn(is_private: bool) -> nn.Module:
    del is_private
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2, stride=1),
        nn.Flatten(),
        nn.Linear(12 * 12 * 32, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )


def _cifar_cnn(is_private: bool) -> nn.Module:
    del is_private
    parts: list[nn.Module] = []
    channels = 3
    for filters in (32, 64, 128):
        for _ in range(2):
            parts += [nn.Conv2d(channels, filters, 3, padding=1), nn.ReLU()]
            channels = filters
        parts.append(nn.MaxPool2d(2))
    parts += [nn.Flatten(), nn.Linear(4 * 4 * 128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*parts)


def _convolution(channels: int, filters: int, strides: int = 1, size: int = 3) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(channels, filters, size, stride=strides, padding=size // 2, bias=False),
        nn.GroupNorm(8, filters),
    )


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int, filters: int, strides: int) -> None:
        super().__init__()
        self.first = _convolution(channels, filters, strides)
        self.second = _convolution(filters, filters)
        is_same = channels == filters
        self.shortcut = nn.Identity() if is_same else _convolution(channels, filters, strides, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(functional.relu(self.first(x)))
        return functional.relu(y + self.shortcut(x))


def _resnet_20(is_private: bool) -> nn.Module:
    del is_private
    parts: list[nn.Module] = [_convolution(3, 16), nn.ReLU()]
    channels = 16
    for filters, first_strides in ((16, 1), (32, 2), (64, 2)):
        for block in range(3):
            parts.append(_ResidualBlock(channels, filters, first_strides if block == 0 else 1))
            channels = filters
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


class _Block(nn.Module):
    """A pre-norm transformer block with four heads."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.projections = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norms[0](x)
        heads = [p(y).unflatten(-1, (4, WIDTH // 4)).transpose(1, 2) for p in self.projections[:3]]
        y = functional.scaled_dot_product_attention(*heads)
        x = x + self.projections[3](y.transpose(1, 2).flatten(2))
        return x + self.narrow(functional.gelu(self.wide(self.norms[1](x))))


class _Transformer(nn.Module):
    """Token and learned position embeddings, two blocks, the mean over positions."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.Sequential(_Block(), _Block())
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        numbers = torch.arange(LENGTH, device=tokens.device).repeat(len(tokens), 1)
        x = self.tokens(tokens) + self.positions(numbers)
        return self.norm(self.blocks(x)).mean(1)


def _transformer(is_private: bool) -> nn.Module:
    del is_private
    return nn.Sequential(_Transformer(), nn.Linear(WIDTH, 2))


def _frozen_transformer(is_private: bool) -> nn.Module:
    del is_private
    body = _Transformer().requires_grad_(False)
    return nn.Sequential(body, nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, 2))


class _Lstm(nn.Module):
    def __init__(self, is_private: bool) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, LSTM_WIDTH)
        make: Callable[..., nn.Module] = nn.LSTM
        if is_private:
            from opacus.layers import DPLSTM

            make = DPLSTM
        self.lstm = make(LSTM_WIDTH, LSTM_UNITS, batch_first=True)
        biases = [p for name, p in self.lstm.named_parameters() if "bias" in name]
        biases[-1].requires_grad_(False)
        self.logits = nn.Linear(LSTM_UNITS, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        outputs, _ = self.lstm(self.tokens(tokens))
        return self.logits(outputs[:, -1])


def _wide_mlp(is_private: bool) -> nn.Module:
    del is_private
    return nn.Sequential(
        nn.Linear(784, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


MODELS: dict[str, Callable[[bool], nn.Module]] = {
    "fashion_mnist_cnn": _fashion_mnist_cnn,
    "cifar_cnn": _cifar_cnn,
    "resnet_20": _resnet_20,
    "transformer": _transformer,
    "lstm": _Lstm,
    "wide_mlp": _wide_mlp,
    "frozen_transformer": _frozen_transformer,
}
"""Makes the module of a network; the argument tells whether Opacus will train it."""
