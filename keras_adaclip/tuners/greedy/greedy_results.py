"""What a greedy search has found, and what that has cost."""

from keras_adaclip.accounting import Ledger, PrivacySpent, check_delta
from keras_adaclip.schedules import PiecewiseConstant
from keras_adaclip.tuners.greedy.greedy_oracle import GreedyOracle
from keras_adaclip.tuners.greedy.greedy_summary import summary
from keras_adaclip.tuners.greedy.power_trend import PowerTrend
from keras_adaclip.tuners.greedy.searched_epoch import SearchedEpoch
from keras_adaclip.tuners.greedy.trial_spending import spent_in


class GreedyResults:
    """The results of a `GreedyClipTuner`, a mixin.

    Attributes:
        delta: for epsilon; None where the data are public.
        project_dir: folder of the search.
    """

    delta: float | None
    project_dir: str
    _greedy: GreedyOracle

    def best_schedule(self) -> PiecewiseConstant:
        """The best threshold of each finished epoch; `save` it, and train other data with it.

        Raises:
            RuntimeError: where no epoch is finished.
        """
        thresholds = [epoch.threshold for epoch in self._state().finished_epochs]
        if not thresholds:
            raise RuntimeError("No epoch is finished yet: call `search` first.")
        return PiecewiseConstant(thresholds)

    def searched_epochs(self) -> list[SearchedEpoch]:
        """What was tried in each finished epoch, and what came of it."""
        return [SearchedEpoch.of(epoch) for epoch in self._state().finished_epochs]

    def trend(self) -> PowerTrend:
        """The `PowerDecay` that is closest to the best schedule.

        Raises:
            RuntimeError: where no epoch is finished.
            ValueError: where one epoch only is.
        """
        return PowerTrend.of(self.best_schedule())

    @property
    def privacy_ledger(self) -> Ledger:
        """What all trials together have spent, with `private=True`.

        Raises:
            RuntimeError: where the data were said to be public, and nothing was counted.
        """
        if not self._greedy.is_private:
            raise RuntimeError(
                "The search counts what it spends with `private=True` only; without, the data are "
                "taken to be public, and what it finds has no privacy guarantee."
            )
        return spent_in(self.project_dir)

    def privacy_spent(self, delta: float | None = None, accountant: str = "pld") -> PrivacySpent:
        """Epsilon of all trials together, with `private=True`.

        Args:
            delta: float in (0, 1); None stands for the tuner's.
            accountant: `"pld"` or `"rdp"`.

        Raises:
            RuntimeError: where the data were said to be public.
        """
        ledger = self.privacy_ledger
        delta = self.delta if delta is None else delta
        return PrivacySpent.from_ledger(ledger, check_delta(delta), accountant)

    def results_summary(self, num_trials: int = 10) -> None:
        """Prints the best threshold of each epoch, the trend, and what the search has spent.

        Args:
            num_trials: so many of the last epochs are shown.
        """
        spent = self.privacy_spent() if self._greedy.is_private else None
        print(summary(self._state(), self.project_dir, spent, num_trials))

    def _state(self) -> GreedyOracle:
        """The oracle, or in a worker what the chief's one has written."""
        raise NotImplementedError
