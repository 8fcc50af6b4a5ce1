"""Describe a run's data, and what the run computes from them at its start."""

from services.config.settings import RunSettings
from services.models.tokenizer import load_tokenizer


def data_of(settings: RunSettings) -> dict[str, str]:
    """Return the sentences `data` and `at the start`; {} for a run without data.

    Example: `{"data": "400 pairs in an epoch, 83,120 tokens", "at the start": "log-probabilities of …"}`
    """
    if settings.data is None:
        return {}
    # These modules import pyarrow, so import them late.
    from services.training.sources.annotated_data import open_source
    from services.training.sources.data_needs import needs_of
    from services.training.sources.own_rows import is_annotated, kept_in, rows_of

    source = open_source(settings, load_tokenizer(settings.model))
    needs = needs_of(settings.algorithm, settings.reward, settings.data)
    made = {1: "responses", 2: "pairs"}.get(needs.num_responses, f"lists of {needs.num_responses} responses")
    sentences = {"data": f"{source.num_kept:,} {made} in an epoch, {source.num_tokens:,} tokens"}
    if settings.data.has_rows and needs.stages:
        rows = rows_of(settings.data, "train").rows
        is_done = is_annotated(kept_in(settings.run_folder, "train"), rows)
        done = ", which the run's folder has" if is_done else ""
        sentences["at the start"] = f"{' and '.join(needs.stages)}, for {len(rows):,} responses{done}"
    return sentences
