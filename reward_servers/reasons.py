"""Reasons why a sample has no score, and the sample beside them, as messages show them."""

from contracts.errors import WhetstoneError
from contracts.scores import Sample
from contracts.secrets.redaction import redact

RAISED = (Exception, SystemExit)  # what a grader may raise without ending the process that serves it


def reason_of(error: BaseException) -> str:
    return redact(str(error) if isinstance(error, WhetstoneError) else f"{type(error).__name__}: {error}")


def excerpt_of(sample: Sample, limit: int = 200) -> str:
    text = sample.text if len(sample.text) <= limit else sample.text[:limit] + "…"
    return f"the sample: {text!r}"
