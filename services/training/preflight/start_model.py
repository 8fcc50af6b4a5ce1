"""Open the model of a run's settings, which may be an adapter, before anything reads its files."""

from services.config.settings import RunSettings
from services.models.adapters import for_training, for_use
from services.terminal.doing import doing


def opened(settings: RunSettings, *, training: bool = True) -> RunSettings:
    """Return the settings with an adapter replaced by the whole model, or by its base in training.

    Args:
        training: False for an evaluation, which reads an adapter as a whole model.

    Raises:
        InputError: the adapter can't be used, or not with these settings.
    """
    with doing("opening the model"):
        model = for_training(settings.model) if training else for_use(settings.model)
    return settings if model == settings.model else settings.model_copy(update={"model": model})
