"""What epsilon and delta mean, what they ask of people, and what they leave out, in words.

An (epsilon, delta)-private training bounds every test of whether a unit was in the data, with a
true positive rate t and a false positive rate f:

    t <= e^epsilon f + delta,    1 - f <= e^epsilon (1 - t) + delta

The best guess between two equally likely cases is then right with probability at most
(e^epsilon + delta) / (1 + e^epsilon).

References:
    Wasserman and Zhou 2010, "A statistical framework for differential privacy"; Ponomareva et al.
    2023, "How to DP-fy ML", on the sizes of epsilon.
"""

import math
from collections.abc import Collection

from keras_adaclip.accounting.epsilon import rounded_up
from keras_adaclip.accounting.events import ADD_OR_REMOVE_ONE, REPLACE_ONE, ZERO_OUT
from keras_adaclip.accounting.kinds import Sampling

NOTHING_RAN = "No step has run: the training data have not been used."
_NEIGHBORS = {
    ADD_OR_REMOVE_ONE: "without the {unit}",
    ZERO_OUT: "with an empty place in the batches instead of the {unit}",
    REPLACE_ONE: "with any other {unit} in its place",
}
_UNITS = {
    "example": "any one example (one row of the training data)",
    "client": "any one client (all of its data together)",
}
_CHOICES = "Choosing hyperparameters, architectures or the best of several runs on the same data."
_OTHER_CHOICES = "Choosing anything on the same data by other means than the selection stated here."
_NOT_COVERED = (
    "Metrics and losses on the training data, in logs, plots and callbacks.",
    "{choices}",
    "Stopping early by a score on private data, unless those data are covered otherwise.",
    "The number of {unit}s, which counts as public.",
    "The validation {unit}s of `validation_split`, and their number, which counts as public.",
    "Other uses of the data: preprocessing fitted to them, other models trained on them.",
    "Gaussian noise is drawn in floating point, with finite precision and finite tails.",
)
_SCORES_OF_SELECTION = "Validation data whose scores decided which run was selected."
_LARGEST_EXPONENT = 700.0
_FALSE_POSITIVE_RATES = (0.01, 0.001)


def best_guess(epsilon: float, delta: float) -> float:
    """The largest probability of a right guess between two equally likely cases.

    Args:
        epsilon: Epsilon, at least 0; may be infinite.
        delta: Delta, between 0 and 1.

    Returns:
        A probability between 0.5 and 1.
    """
    return 1.0 - (1.0 - delta) / (1.0 + math.exp(min(epsilon, _LARGEST_EXPONENT)))


def most_true_positives(false_positives: float, epsilon: float, delta: float) -> float:
    """The largest true positive rate of a test with a given false positive rate.

    Args:
        false_positives: The share of absent units that the test takes for present, up to 1.
        epsilon: Epsilon, at least 0 and finite.
        delta: Delta, between 0 and 1.

    Returns:
        A rate between 0 and 1.
    """
    ratio = math.exp(min(epsilon, _LARGEST_EXPONENT))
    return min(ratio * false_positives + delta, 1.0 - (1.0 - delta - false_positives) / ratio, 1.0)


def percent(share: float) -> str:
    """A share in percent, rounded up.

    Args:
        share: The share, between 0 and 1.
    """
    return f"{math.ceil(1000 * share - 1e-9) / 10:g}%"


def protection(unit: str, relation: str, is_selected: bool) -> tuple[str, ...]:
    """What is protected, and from whom.

    Args:
        unit: The unit of privacy, `"example"` or `"client"`.
        relation: The neighbouring relation.
        is_selected: Whether the model is the best of several runs.
    """
    what = (
        f"Protected: whether {_UNITS[unit]} was used for training, and what it contained. Training "
        f"{_NEIGHBORS[relation].format(unit=unit)} gives nearly the same distribution of models; "
        "epsilon and delta bound the difference."
    )
    seen = (
        "the weights of the selected run, but neither other runs nor their number"
        if is_selected
        else "the trained weights, the weights after every step, and the clipping norms"
    )
    return (
        what,
        f"From whom: anyone who sees {seen}, even if they know the method and all other {unit}s, "
        "and whatever they compute or learn later.",
        "Not from: anyone who sees the data, the memory of the training process, or its random "
        "numbers.",
    )


def meaning(epsilon: float, delta: float, unit: str, num_examples: int) -> tuple[str, ...]:
    """What epsilon and delta mean for an attacker.

    Args:
        epsilon: The epsilon to quote.
        delta: Its delta.
        unit: The unit of privacy, `"example"` or `"client"`.
        num_examples: Number of units in the data, 0 if unknown.
    """
    if math.isinf(epsilon):
        return (
            "Epsilon is infinite: nothing is promised. An attacker may find out with certainty "
            f"whether any {unit} was in the training data.",
        )
    one_in = f"{math.floor(1 / delta * (1 + 1e-12)):,}"
    texts = [
        f"Epsilon is at most {rounded_up(epsilon)}: whatever an attacker looks for is at most "
        f"e^epsilon = {_ratio(epsilon)} times as likely with one of the two data sets as with the "
        "other.",
        f"Delta is {delta:g}, or 1 in {one_in}: a probability that may be added to each of these "
        "bounds.",
        f"An attacker to whom it is as likely as not that the {unit} was used, and who then sees "
        f"all this, guesses right with probability at most {percent(best_guess(epsilon, delta))}. "
        "A blind guess is right with probability 50%.",
        *(
            f"A membership test with a false positive rate of {rate:.1%} has a true positive rate "
            f"of at most {percent(most_true_positives(rate, epsilon, delta))}."
            for rate in _FALSE_POSITIVE_RATES
        ),
        "Ponomareva et al. (2023) call an epsilon of up to 1 strong, up to 10 reasonable, and "
        "above 10 weak or worse.",
    ]
    if delta * num_examples >= 1:
        texts.append(
            f"DELTA IS TOO LARGE: it should be well below 1 in {num_examples:,}, the number of "
            f"{unit}s. With this one, publishing a random {unit} would count as private."
        )
    return tuple(texts)


def assumptions(unit: str, samplings: Collection[str], has_selection: bool) -> tuple[str, ...]:
    """What people must have done for epsilon to hold.

    Args:
        unit: The unit of privacy, `"example"` or `"client"`.
        samplings: The labels of the samplings that ran.
        has_selection: Whether the model is the best of several runs.
    """
    person = (
        "Data: each person has one row. For a person with several, epsilon is that of a person "
        "with so many examples."
        if unit == "example"
        else "Data: all data of a person belong to one client."
    )
    texts = [
        person,
        "Data: initial weights, vocabularies, normalization and the like were made without these "
        "data, or are covered otherwise.",
    ]
    if Sampling.PASS.label in samplings:
        texts.append(
            f"Training: no {unit} comes twice in a pass over the data. The user has stated this "
            "(`once_per_pass=True`); it was not checked."
        )
    if Sampling.STREAM.label in samplings:
        texts.append(f"Training: no {unit} comes twice in a batch. This was not checked.")
    if has_selection:
        texts.append(
            "Training: the number of runs was drawn from the stated law and stays secret; the "
            "runs had the stated mechanism, hyperparameters drawn independently, and nothing else "
            "of them is published."
        )
    return (
        *texts,
        "Training: validation data, and whatever decided on hyperparameters or on when to stop, "
        "are public or covered otherwise.",
        "Training: a seed of noise or sampling, if one was set, stays secret, and no other run has "
        "used it.",
        "Publication: only weights and what is computed from them, no metrics, logs or plots of "
        "the training data.",
    )


def not_covered(unit: str, has_choice: bool, is_selected: bool) -> tuple[str, ...]:
    """What epsilon does not cover.

    Args:
        unit: The unit of privacy, `"example"` or `"client"`.
        has_choice: Whether a choice among several runs is counted or stated.
        is_selected: Whether the ledger counts the selection of the model.
    """
    choices = _OTHER_CHOICES if has_choice else _CHOICES
    texts = (*_NOT_COVERED, *([_SCORES_OF_SELECTION] if is_selected else []))
    return tuple(text.format(unit=unit, choices=choices) for text in texts)


def _ratio(epsilon: float) -> str:
    """Return e^epsilon, rounded up."""
    return rounded_up(math.exp(epsilon), 3) if epsilon < _LARGEST_EXPONENT else "more than 1e300"
