"""An audit by one training run."""

from collections.abc import Callable
from typing import Any

import keras

from keras_adaclip._checks import check_between_0_and_1, check_integer
from keras_adaclip.accounting import default_delta
from keras_adaclip.audit.canaries import Canaries
from keras_adaclip.audit.one_run_audit import OneRunAudit


def one_run(
    model_builder: Callable[[], keras.Model],
    x: Any,
    y: Any = None,
    *,
    batch_size: int,
    epochs: int,
    num_canaries: int = 1000,
    kind: str = "random",
    delta: float | None = None,
    confidence: float = 0.95,
    num_guesses: int | None = None,
    seed: int | None = None,
    **fit_arguments: Any,
) -> OneRunAudit:
    """Trains once on data with canaries, and bounds epsilon from below by what was remembered.

    Some rows become canaries, of each of which a coin decides whether training has it; the
    model is trained with Poisson sampling; the canaries whose loss fell most are guessed to have
    been in, those whose loss fell least to have been out. The number of right guesses bounds
    epsilon with a confidence that needs no assumption on model, data or canaries.

    A low bound proves nothing: a better attacker, who watches every step or chooses worse
    canaries, may find more. A bound above the accountant's epsilon says that something in this
    training is not private: noise that is not there, or data that reach the weights by a way of
    their own (an early stop by the training loss). What was taken from the data before training, a
    vocabulary or a mean, no coin has a part in, and the audit does not see it.

    Args:
        model_builder: returns a new `PrivateModel`, compiled with a `DPOptimizer`.
        x: array, or dict, list or tuple of arrays, of shape `(num_examples, ...)`; not changed.
        y: targets of the same length, or None.
        batch_size: expected number of examples in a step, before the coins are tossed; at most
            `num_examples` less half of the canaries.
        epochs: number of epochs.
        num_canaries: from 2 to `num_examples`. An audit of few rows, all of them canaries, finds
            the most; with k canaries no bound is above about log k.
        kind: what a canary is: `"random"`, `"mislabeled"` or `"unchanged"`, see `Canaries.draw`.
        delta: the delta of both bounds; far below one over `num_canaries`. None means
            `num_examples ** -1.1`, at most a hundredth of one over `num_canaries`.
        confidence: between 0 and 1.
        num_guesses: how many canaries to guess; None tries several numbers, and pays for that.
        seed: None, or an integer that makes canaries and coins repeatable.
        **fit_arguments: more arguments of `PrivateModel.fit`, such as `callbacks`.

    Returns:
        The audit; `print` it.

    Raises:
        TypeError: where an argument has the wrong type, or the builder returns no private model.
        ValueError: where an argument is out of range, or the model has been trained before.

    Example:

    >>> import numpy as np
    >>> import keras_adaclip as ka
    >>> def build():
    ...     model = ka.PrivateSequential([keras.Input((4,)), keras.layers.Dense(1)])
    ...     model.compile(ka.optimizers.DPOptimizer("sgd", noise_multiplier=2.0), loss="mse")
    ...     return model
    >>> x = np.random.default_rng(0).normal(size=(64, 4))
    >>> audit = one_run(build, x, x[:, :1], batch_size=16, epochs=1, num_canaries=64, verbose=0)
    >>> audit.num_canaries, audit.contradicts_accountant
    (64, False)

    Reference:
        Steinke, Nasr & Jagielski 2023, "Privacy auditing with one (1) training run", algorithm 1.
    """
    confidence = check_between_0_and_1("confidence", confidence)
    delta = None if delta is None else check_between_0_and_1("delta", delta)
    if num_guesses is not None:
        check_integer("num_guesses", num_guesses, minimum=1, maximum=num_canaries)
    canaries = Canaries.draw(x, y, num_canaries=num_canaries, kind=kind, seed=seed)
    if delta is None:
        delta = min(default_delta(canaries.num_examples), 0.01 / len(canaries))
    dataset = canaries.dataset(batch_size)
    model = model_builder()
    if not hasattr(model, "privacy_spent"):
        raise TypeError(
            "Argument `model_builder` must return a `PrivateModel`. "
            f"Received: an object of type {type(model).__name__}"
        )
    if not model.compiled:
        raise ValueError("Argument `model_builder` must return a compiled model.")
    if model.privacy_ledger.steps > 0:
        raise ValueError(
            "Argument `model_builder` must return a new model. Received: one that was trained for "
            f"{model.privacy_ledger.steps} steps. For a model that goes on, train it on "
            "`Canaries.dataset`, with `AuditCallback`."
        )
    before = canaries.losses(model)
    model.fit(dataset, epochs=epochs, **fit_arguments)
    return OneRunAudit.from_scores(
        before - canaries.losses(model),
        canaries.is_member,
        delta=delta,
        claimed_epsilon=model.privacy_spent(delta).epsilon,
        confidence=confidence,
        num_guesses=num_guesses,
    )
