"""Prompt and text joined, for graders that judge both."""

from contracts.scores import Sample


def whole_text(sample: Sample, include_prompt: bool) -> str:
    """Return the text, alone or after its prompt, with at least one blank between them.

    >>> whole_text(Sample("b", prompt="a"), True), whole_text(Sample(" b", prompt="a"), True)
    ('a b', 'a b')
    """
    if not include_prompt or not sample.prompt:
        return sample.text
    apart = sample.prompt[-1:].isspace() or sample.text[:1].isspace() or not sample.text
    return f"{sample.prompt}{'' if apart else ' '}{sample.text}"
