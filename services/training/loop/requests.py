"""A user's requests to a running run: stop it, or change the number of workers."""

from dataclasses import dataclass

from services.terminal.interrupts import StopRequest
from services.training.loop.scaling import Scaling


@dataclass(frozen=True, slots=True)
class RunRequests:
    """Reader of requests; the loop calls it whenever it can answer them."""

    stop: StopRequest
    scaling: Scaling

    def look(self) -> None:
        """Answer requests.

        Raises:
            Interrupted: a stop was requested.
        """
        self.stop.check()
        self.scaling.look()
