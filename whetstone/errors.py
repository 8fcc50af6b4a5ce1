"""Errors that a call raises: InputError for what the caller can fix, RunError for everything else."""


class InputError(ValueError):
    """A wrong name, type, file or value; the message says what was expected. Nothing was started."""


class RunError(RuntimeError):
    """A command failed while it ran; the message names the log that has the traceback."""
