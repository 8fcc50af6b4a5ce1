"""A person's requests to a running run: to stop, or to use more or fewer workers."""

from dataclasses import dataclass

from services.loop.scaling import Scaling
from services.terminal.interrupts import StopRequest


@dataclass(frozen=True, slots=True)
class RunRequests:
    """Reader of requests; the loop calls it wherever it can answer them."""

    stop: StopRequest
    scaling: Scaling

    def look(self) -> None:
        """Answer requests.

        Raises:
            Interrupted: a stop was asked for.
        """
        self.stop.check()
        self.scaling.look()
