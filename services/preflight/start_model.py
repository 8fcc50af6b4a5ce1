"""Open the model of a run's settings, which may be an adapter, before anything reads its files."""

from services.config.settings import RunSettings
from services.models.adapters import for_training, for_use
from services.terminal.doing import doing


def opened(settings: RunSettings, *, training: bool = True) -> RunSettings:
    """Return the settings with a whole model in place of an adapter, or its base where it is trained.

    Args:
        training: False for an evaluation, to which an adapter is a model as any other.

    Raises:
        InputError: the adapter can't be used, or not as it is asked for.
    """
    with doing("opening the model"):
        model = for_training(settings.model) if training else for_use(settings.model)
    return settings if model == settings.model else settings.model_copy(update={"model": model})
