"""Silence libraries that load models, so they do not disturb a model's text."""


def quiet_transformers() -> None:
    """Turn off transformers' progress bars and warnings, because they would mix with the model's text."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
