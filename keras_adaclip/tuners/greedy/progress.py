"""What a greedy search prints: one line a trial."""

import time


class Progress:
    """Writes the lines, and guesses how long the rest takes.

    The guess supposes that each later epoch takes as many trials as the earlier ones did in the
    mean, and that trials follow each other as quickly as in this process so far.

    Args:
        epochs: number of epochs of the search.
        objective: name of the objective.
    """

    def __init__(self, epochs: int, objective: str) -> None:
        self._epochs = epochs
        self._objective = objective
        self._began: float | None = None
        self._num_ended = 0

    def begin_trial(self) -> None:
        """Called when a trial is handed out."""
        if self._began is None:
            self._began = time.monotonic()

    def line(
        self,
        epoch: int,
        clip_norm: float,
        score: float,
        best: tuple[float, float] | None,
        finished_epochs: list[int],
        tried: int,
    ) -> str:
        """The line of a trial that has ended.

        Args:
            epoch: its epoch, from 1.
            clip_norm: its threshold.
            score: its objective.
            best: the best objective of the epoch so far, and its threshold.
            finished_epochs: number of trials of each epoch that is finished.
            tried: number of trials of this epoch, 0 if it is among the finished ones.
        """
        self._num_ended += 1
        best_words = "none" if best is None else f"{best[0]:.4f} at {best[1]:.4g}"
        return (
            f"epoch {epoch}/{self._epochs}  clip_norm {clip_norm:.4g}  "
            f"{self._objective} {score:.4f}  best {best_words}  "
            f"left {self._time_left(finished_epochs, tried)}"
        )

    def _time_left(self, finished_epochs: list[int], tried: int) -> str:
        if not finished_epochs or self._began is None:
            return "unknown"
        usual = sum(finished_epochs) / len(finished_epochs)
        remaining = usual * (self._epochs - len(finished_epochs))
        remaining = max(0.0, remaining - min(tried, usual))
        return _in_words(remaining * (time.monotonic() - self._began) / self._num_ended)


def _in_words(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
