"""Opacus: a plain PyTorch step, hooks that keep per-example gradients, and ghost clipping."""

from collections.abc import Callable
from typing import Any

import torch
from framework import Framework, Train
from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping
from suite import Benchmark
from torch import nn

from peers.torch_models import MODELS, channels_first


def framework(name: str) -> Framework:
    """What the measurements need.

    Args:
        name: not used, there is one only.
    """
    del name
    memory = torch.cuda.max_memory_allocated if torch.cuda.is_available() else None
    return Framework(
        build=build,
        packages=("opacus", "torch", "numpy"),
        limit_threads=lambda: torch.set_num_threads(1),
        memory=memory,
    )


def build(benchmark: Benchmark, way: str) -> Train:
    """A model and its training loop, as Opacus's guides write it.

    Args:
        benchmark: the model.
        way: "plain", "plain-compiled" (with `torch.compile`), "ghost" or "hooks".
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    module = MODELS[benchmark.network](way in ("ghost", "hooks")).to(device)
    benchmark.check_size(sum(p.numel() for p in module.parameters() if p.requires_grad))
    criterion: Any = nn.CrossEntropyLoss()
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    optimizer: Any = torch.optim.SGD(trainable, lr=0.01)
    arguments = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "expected_batch_size": benchmark.batch_size,
    }
    if way == "hooks":
        module = GradSampleModule(module)
        optimizer = DPOptimizer(optimizer, **arguments)
    elif way == "ghost":
        module = GradSampleModuleFastGradientClipping(module, max_grad_norm=1.0)
        optimizer = DPOptimizerFastGradientClipping(optimizer, **arguments)
        criterion = DPLossFastGradientClipping(module, optimizer, criterion)
    elif way == "plain-compiled":
        module = torch.compile(module)
    module.train()

    def train(num_steps: int) -> Callable[[], Any]:
        rows = benchmark.batch_size * num_steps
        inputs, targets = benchmark.data(rows)
        x, y = torch.from_numpy(channels_first(inputs)).to(device), torch.from_numpy(targets)
        y = y.to(device)

        def run() -> float:
            # Rows in a new order and the mean loss, as `fit` has them.
            order = torch.randperm(rows, device=device)
            total = torch.zeros((), device=device)
            for start in range(0, rows, benchmark.batch_size):
                chosen = order[start : start + benchmark.batch_size]
                optimizer.zero_grad()
                loss = criterion(module(x[chosen]), y[chosen])
                loss.backward()
                optimizer.step()
                total += loss.detach()
            return total.item()  # waits for the device

        return run

    return train
