"""Make reasoning_gym's items in a separate process with a fixed hash seed.

Some generators iterate over sets, whose order depends on this seed. The separate process also keeps the
import, which takes seconds and much memory, out of the run.
"""

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from contracts.errors import InputError
from contracts.literals import packed


def items(
    dataset: str, options: Mapping[str, Any], seed: int, first: int, count: int
) -> list[dict[str, str]]:
    """Return the items `first` to `first + count` of a data set: question, answer and whole entry.

    Raises:
        InputError: there is no such data set, or it doesn't take these options.
    """
    request = {"dataset": dataset, "options": dict(options), "seed": seed, "first": first, "count": count}
    done = subprocess.run(
        [sys.executable, "-P", "-m", __name__],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
        env=os.environ
        | {"PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
    )
    try:
        reply = json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        raise InputError(f"task=reasoning_gym: {done.stderr.strip()[-400:]}") from None
    if "refused" in reply:
        raise InputError(f"task=reasoning_gym: {reply['refused']}")
    made: list[dict[str, str]] = reply["items"]
    return made


def main() -> None:
    request = json.load(sys.stdin)
    warnings.simplefilter("ignore")  # SyntaxWarnings of its dependencies
    print(json.dumps(_made(**request)))


def _made(dataset: str, options: dict[str, Any], seed: int, first: int, count: int) -> dict[str, Any]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    from contracts.errors import did_you_mean

    if dataset not in DATASETS:
        return {
            "refused": f"task.dataset={dataset}: there is no such data set{did_you_mean(dataset, DATASETS)}"
        }
    try:
        data = reasoning_gym.create_dataset(dataset, **options, seed=seed, size=first + count)
        entries = [data[place] for place in range(first, first + count)]
    except (TypeError, ValueError, AssertionError) as error:
        return {"refused": f"task.dataset={dataset} does not take task.options={options}: {error}"}
    return {
        "items": [
            {"question": entry["question"], "answer": str(entry["answer"] or ""), "entry": packed(entry)}
            for entry in entries
        ]
    }


if __name__ == "__main__":
    main()
