"""Decide whether to replace a lost learner. `learner.max_restarts` and repeated errors end the run."""

from contracts.errors import LearnerFailed, LearnerLost, RunError
from contracts.processes.restart_budget import RestartBudget


class LearnerRestarts:
    """Budget of replacements of one run's learner."""

    def __init__(self, limit: int) -> None:
        self._budget = RestartBudget(limit, "learner.max_restarts")
        self._failed_in: int | None = None  # last iteration in which a learner raised an error

    def spend(self, lost: LearnerLost, iteration: int) -> str:
        """Count a loss; return a text that announces the next learner.

        A learner that raised an unexpected error gets another try, because its GPU or memory may have failed.
        A second error in the same iteration comes from the program or from the user's class.

        Args:
            iteration: the iteration in which the learner was lost.

        Raises:
            RunError: `learner.max_restarts` would be exceeded, or two learners raised in this iteration.
        """
        if isinstance(lost, LearnerFailed):
            if self._failed_in == iteration:
                raise RunError(f"two learners raised in iteration {iteration}, and so would a third: {lost}")
            self._failed_in = iteration
        return f"replacement {self._budget.spend(lost, iteration)} of {self._budget.limit}"
