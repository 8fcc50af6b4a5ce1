"""Prepare evaluations: the same leases of held-out prompts every time, and the evaluator."""

from collections.abc import Sequence

from contracts.clients import RolloutClient
from contracts.rollout import Lease
from learner.settings import ModelSettings
from reward_servers.evaluated_metrics import evaluated_metrics
from services.config.evaluation_settings import EvaluationSettings
from services.config.post_processing import find_post_processor
from services.config.settings import RunSettings
from services.data.tasks.base import Split
from services.models.files import read_model
from services.models.tokenizer import load_tokenizer
from services.training.loop.collecting import Collector
from services.training.loop.evaluations.evaluated_metrics import EvaluatedMetrics
from services.training.loop.evaluations.evaluated_model import EvaluatedModel
from services.training.loop.evaluations.evaluator import Evaluator
from services.training.loop.evaluations.policy_perplexity import PolicyPerplexity
from services.training.loop.evaluations.responses import HeldOutResponses
from services.training.loop.statistics.at_k import AtK
from services.training.sources.leasing import evaluation_leases
from services.training.sources.prompts import prompts_of
from services.training.sources.reading import reading_of

SHOWN = 8  # texts of a split that are written for a person to read, if nothing grades them
LARGEST_WINDOW = 1024  # tokens; some models' windows exceed a worker's cache by far


def held_out_leases(settings: RunSettings, split: Split) -> list[Lease]:
    """Return the leases of a split's evaluation."""
    prompts = prompts_of(settings.task, settings.task_name, split)[: settings.evaluation.num_prompts]
    return evaluation_leases(
        prompts if settings.is_graded else prompts[:SHOWN],
        reading_of(settings, split),
        settings.sampling(evaluating=True),
        samples=settings.evaluation.samples_per_prompt,
        seed=settings.seed,
    )


def evaluator_of(
    settings: RunSettings,
    collector: Collector,
    splits: Sequence[Split],
    responses: HeldOutResponses | None = None,
) -> Evaluator:
    """Return the evaluator of a model on these splits."""
    reading, metrics = reading_of(settings, "validation"), evaluated_metrics(settings.metrics)

    def model(workers: RolloutClient) -> EvaluatedModel:
        return EvaluatedModel(
            load_tokenizer(settings.model),
            workers,
            reading,
            settings.sampling(evaluating=True),
            settings.seed,
            None if read_model(settings.model).is_encoder_decoder else _window(settings.model),
            settings.plays,
            next(iter(settings.parts), ""),
        )

    return Evaluator(
        {split: held_out_leases(settings, split) for split in splits},
        collector,
        find_post_processor(settings.evaluation.post_processor),
        _policy_perplexity(settings.model, settings.evaluation),
        reading.text,
        settings.environment.has_baselines,
        AtK.of(settings.evaluation),
        tuple(settings.parts),
        EvaluatedMetrics(metrics, settings.by_part, model) if metrics else None,
        responses,
    )


def _window(model: ModelSettings) -> int:
    """Return the most tokens of a text that the workers score. vLLM generates one more token."""
    return min(read_model(model).window or LARGEST_WINDOW, LARGEST_WINDOW) - 1


def _policy_perplexity(model: ModelSettings, evaluation: EvaluationSettings) -> PolicyPerplexity | None:
    """Return the measure of the policy's perplexity on reference texts; None without a stride."""
    if evaluation.perplexity_stride is None:
        return None
    return PolicyPerplexity(
        load_tokenizer(model), _window(model), evaluation.perplexity_stride, evaluation.perplexity_meta
    )
