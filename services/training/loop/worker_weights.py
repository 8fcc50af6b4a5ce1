"""Push the learner's weights to the rollout workers."""

import time

from contracts.clients import FleetClient, LearnerClient
from contracts.processes import timeline


class WorkerWeights:
    """Pusher of the learner's weights: after each update, or only before an evaluation.

    Args:
        each_update: False if training generates nothing, so that only evaluations need the weights.
        sleep: whether workers share the learner's GPU, and free its memory while the learner trains.
    """

    def __init__(
        self, learner: LearnerClient, workers: FleetClient, *, each_update: bool, sleep: bool
    ) -> None:
        self._learner, self._workers = learner, workers
        self._each_update, self._sleep = each_update, sleep

    def make_room(self) -> None:
        """Free the learner's GPU before an update, if workers share it."""
        if self._sleep:
            self._workers.sleep()

    def push(self) -> dict[str, float]:
        """Push after an update; return the push's time and size."""
        return self._push() if self._each_update else {"time/weights_s": 0.0}

    def push_for_evaluation(self) -> None:
        """Push before an evaluation, unless every update pushes."""
        if not self._each_update:
            self._push()

    def _push(self) -> dict[str, float]:
        started = time.perf_counter()
        with timeline.span("waits for the learner to publish"):
            published = self._learner.publish()
        with timeline.span("waits for the workers to load"):
            self._workers.load_weights(published)
        seconds = time.perf_counter() - started
        return {"time/weights_s": seconds, "weights/pushed_mb": published.manifest.num_bytes / 1e6}
