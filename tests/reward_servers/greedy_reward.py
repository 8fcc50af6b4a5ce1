"""A reward that obeys the text's commands, for tests of the sandbox."""

import os
import subprocess
import time
from collections.abc import Sequence

from contracts.scores import Sample


class Greedy:
    def score(self, samples: Sequence[Sample]) -> list[float]:
        return [self._score(sample.text) for sample in samples]

    def _score(self, text: str) -> float:
        match text.split(":"):
            case ["hang"]:
                time.sleep(600)
            case ["exit"]:
                os._exit(3)
            case ["raise"]:
                raise ValueError("no")
            case ["print"]:
                print('{"answers": [[9.0, null]]}', flush=True)
            case ["memory"]:
                return float(len(bytearray(3 * 2**30)))
            case ["file"]:
                with open("large", "wb") as file:
                    file.write(bytes(2 * 2**20))
            case ["environment", name]:
                return float(name in os.environ)
        return self._harmless(text)

    def _harmless(self, text: str) -> float:
        match text:
            case "say":
                print("x" * 400_000)
            case "child":
                return float(subprocess.Popen(["sleep", "600"]).pid)
            case "pid":
                return float(os.getpid())
        return float(len(text))
