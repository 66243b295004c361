"""A pause between two questions to an oracle that has nothing to do."""

import time

_PAUSE = 0.5


class Waiting:
    """Pauses where an answer brought no trial; keras-tuner itself would ask in a tight loop."""

    def __init__(self) -> None:
        self._is_unanswered = False

    def ask(self) -> None:
        """Called before each question."""
        if self._is_unanswered:
            time.sleep(_PAUSE)
        self._is_unanswered = True

    def has_trial(self) -> None:
        """Called where the answer was a trial."""
        self._is_unanswered = False
