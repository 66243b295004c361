"""What a greedy search says of itself."""

import textwrap

from keras_adaclip.accounting import PrivacySpent
from keras_adaclip.schedules import PiecewiseConstant
from keras_adaclip.tuners.greedy.greedy_oracle import GreedyOracle
from keras_adaclip.tuners.greedy.power_trend import PowerTrend

_PUBLIC = """\
This search is NOT private: it trains many models and chooses among them by
their scores. It is meant for public data; what it finds may then be used with
private data. On private data, use `private=True`, which adds up every trial."""
_PRIVATE = """\
This search is on private data: every trial that is begun is added to what is
spent, as a whole epoch. The validation data are taken to be public."""


def privacy_statement(is_private: bool) -> str:
    """What a search on such data does and does not protect."""
    return _PRIVATE if is_private else _PUBLIC


def statement_of_model(num_trials: int) -> str:
    """What the ledger of a model that the search has chosen does not say, with public data."""
    return (
        f"The model was chosen among {num_trials} trials by a search that is not private: the "
        "ledger of this model is that of its own epochs, and its epsilon does not hold for the "
        "data of the search."
    )


def statement_of_all(spent: PrivacySpent) -> str:
    """What all trials of a search have spent, in lines."""
    return textwrap.fill(f"All trials together: {spent}", 80)


def summary(oracle: GreedyOracle, folder: str, spent: PrivacySpent | None, most_epochs: int) -> str:
    """The results as text.

    Args:
        oracle: the state of the search.
        folder: where its files are.
        spent: what all trials have spent, with private data.
        most_epochs: so many of the last epochs are shown.
    """
    finished = oracle.finished_epochs
    lines = [
        f"Greedy search for clipping norms in {folder}",
        f"{len(finished)} of {oracle.epochs} epochs are finished, after {len(oracle.trials)} "
        f"trials. Objective: {oracle.objective.name} ({oracle.objective.direction}).",
    ]
    if finished:
        lines.append(f"{'epoch':>5}  {'clip_norm':>10}  {'objective':>10}  {'trials':>6}")
    first = max(0, len(finished) - most_epochs)
    for number, epoch in list(enumerate(finished, 1))[first:]:
        score = epoch.score(epoch.position)
        lines.append(
            f"{number:>5}  {epoch.threshold:>10.4g}  {score:>10.4f}  {epoch.num_trials:>6}"
        )
    if len(finished) > 1:
        trend = PowerTrend.of(PiecewiseConstant([epoch.threshold for epoch in finished]))
        lines.append(f"Trend: {trend}")
    lines.append(privacy_statement(oracle.is_private))
    if spent is not None:
        lines.append(statement_of_all(spent))
    return "\n".join(lines)
