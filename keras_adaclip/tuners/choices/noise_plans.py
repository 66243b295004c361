"""The noise of all trials of a search space, found before one of them tells what it has drawn."""

import itertools
import sys
import time
from collections.abc import Callable, Iterable

import keras_tuner

from keras_adaclip.tuners.choices.planned_noise import PlannedNoise

_MOST_AT_ONCE = 8
_SECONDS_WITHOUT_A_WORD = 2.0


class NoisePlans:
    """The noise of each combination of batch size and noise schedule, found once.

    All combinations are found when one is needed, so that neither what is kept nor what is printed
    tells which of them trials have drawn. Where there are more than eight, each is found when it
    is needed, in silence.

    Args:
        batch_sizes: those to choose from.
        noise_schedules: those to choose from.
        find: the noise of a combination.
    """

    def __init__(
        self,
        batch_sizes: Iterable[int],
        noise_schedules: Iterable[str],
        find: Callable[[int, str], PlannedNoise],
    ) -> None:
        self._combinations = tuple(itertools.product(batch_sizes, noise_schedules))
        self._find = find
        self._found: dict[tuple[int, str], PlannedNoise] = {}

    def of(self, batch_size: int, noise_schedule: str) -> PlannedNoise:
        """The noise of a trial.

        Args:
            batch_size: its batch size.
            noise_schedule: its noise schedule.

        Raises:
            FatalValueError: where no noise reaches the target.
        """
        wanted = (batch_size, noise_schedule)
        if wanted in self._found:
            return self._found[wanted]
        if wanted not in self._combinations or len(self._combinations) > _MOST_AT_ONCE:
            self._found[wanted] = self._at_the_target(*wanted)
            return self._found[wanted]
        began = time.perf_counter()
        self._found |= {each: self._at_the_target(*each) for each in self._combinations}
        seconds = time.perf_counter() - began
        if seconds > _SECONDS_WITHOUT_A_WORD:
            print(
                "ClippingHyperModel: the noise for all batch sizes and noise schedules took "
                f"{seconds:.0f} s to calibrate, and is kept for later trials.",
                file=sys.stderr,
            )
        return self._found[wanted]

    def _at_the_target(self, batch_size: int, noise_schedule: str) -> PlannedNoise:
        try:
            return self._find(batch_size, noise_schedule)
        except ValueError as error:
            raise keras_tuner.errors.FatalValueError(str(error)) from error
