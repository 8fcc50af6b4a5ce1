"""Whetstone for scripts and notebooks: train with a reward that is a function, and read the results.

    run = whetstone.train(experiment="demo", model__path=whetstone.demo_model(), reward=my_function)
    run.metrics["reward/mean"].plot()

Each call runs the command of the same name in another process. So this package imports neither Ray, torch nor
Whetstone's other packages, and the caller's modules may have their names.
"""

from whetstone.errors import InputError, RunError
from whetstone.grading import Graded, evaluate, score
from whetstone.runs import Run, load_run
from whetstone.training import demo_model, train

__all__ = [
    "Graded",
    "InputError",
    "Run",
    "RunError",
    "demo_model",
    "evaluate",
    "load_run",
    "score",
    "train",
]
