"""Prompt and text as one, for graders that judge what a reader would see."""

from contracts.scores import Sample


def whole_text(sample: Sample, include_prompt: bool) -> str:
    """The text, behind its prompt or alone, with a blank between them unless one of them brings it.

    >>> whole_text(Sample("b", prompt="a"), True), whole_text(Sample(" b", prompt="a"), True)
    ('a b', 'a b')
    """
    if not include_prompt or not sample.prompt:
        return sample.text
    apart = sample.prompt[-1:].isspace() or sample.text[:1].isspace() or not sample.text
    return f"{sample.prompt}{'' if apart else ' '}{sample.text}"
