"""Which way the gradients of a model take: layer by layer, vectorized, or one by one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import keras

from keras_adaclip.gradients.layers import GeneralRule, LayerRule


@dataclass(frozen=True)
class GradientPlan:
    """The way each layer takes.

    Args:
        rules: the rule of each layer with trainable weights; empty where `whole_model_reason`
            is set.
        variables: the trainable variables that each of these layers answers for.
        whole_model_reason: why the whole model is differentiated for each example; None where it
            goes layer by layer.
        batched: for the layers of the general rule, the numbers of the arguments that have a
            batch axis.
        quicker_calls: for some layers, what does the same as their `call` in less time.
        is_vectorized: whether the whole model is differentiated for all examples at once instead
            of one after another.
        numbers_per_example: how many float32 numbers are written for the norms and sums of one
            example, beyond what forward and backward pass write; 0 where that is not known.
        outputs_per_example: how many numbers the layers return for one example; 0 where that is
            not known.
    """

    rules: Mapping[keras.layers.Layer, LayerRule]
    variables: Mapping[keras.layers.Layer, list[keras.Variable]]
    whole_model_reason: str | None = None
    batched: Mapping[keras.layers.Layer, frozenset[int]] = field(default_factory=dict)
    quicker_calls: Mapping[keras.layers.Layer, Callable[..., Any]] = field(default_factory=dict)
    is_vectorized: bool = False
    numbers_per_example: int = 0
    outputs_per_example: int = 0

    @property
    def is_layerwise(self) -> bool:
        """Whether one forward and one backward pass serve all examples at once."""
        return self.whole_model_reason is None

    @property
    def is_one_by_one(self) -> bool:
        """Whether each example is differentiated alone, the last resort."""
        return not self.is_layerwise and not self.is_vectorized

    def describe(self) -> dict[str, str]:
        """For each layer with trainable weights, by name, the way it takes."""
        if not self.is_layerwise:
            way = "vectorized" if self.is_vectorized else "one example after another"
            return {"(whole model)": f"{way}: {self.whole_model_reason}"}
        return {layer.name: name_of_rule(rule) for layer, rule in self.rules.items()}


def whole_model_plan(reason: str) -> GradientPlan:
    """The plan of last resort.

    Args:
        reason: why nothing faster is possible, for `check` and `private_summary`.
    """
    return GradientPlan({}, {}, reason)


def name_of_rule(rule: LayerRule) -> str:
    """What a rule is called where users read it."""
    if isinstance(rule, GeneralRule):
        return "general (vmap of this layer's vector-Jacobian product)"
    return type(rule).__name__
