"""What an evaluation asks of the workers: prompts that training never saw, the same ones every time."""

from contracts.rollout import Lease
from services.leasing import PromptTokens, evaluation_leases
from services.model_files import read_model
from services.policy_perplexity import PolicyPerplexity
from services.preflight import prompts_of
from services.settings import RunSettings
from services.tasks.base import Split

LARGEST_WINDOW = 1024  # tokens; some models' windows are far larger than what a worker's cache holds


def held_out_leases(settings: RunSettings, split: Split) -> list[Lease]:
    """Prompts and seeds of a split's evaluation."""
    from services.train import load_tokenizer

    return evaluation_leases(
        prompts_of(settings, split)[: settings.evaluation.num_prompts],
        PromptTokens(load_tokenizer(settings), settings.rollout.max_prompt_tokens),
        settings.sampling(evaluating=True),
        samples=settings.evaluation.samples_per_prompt,
        seed=settings.seed,
    )


def policy_perplexity(settings: RunSettings) -> PolicyPerplexity | None:
    """What computes the references' perplexity under the policy, if the settings ask for it."""
    from services.train import load_tokenizer

    stride = settings.evaluation.perplexity_stride
    if stride is None:
        return None
    window = min(read_model(settings.model).window or LARGEST_WINDOW, LARGEST_WINDOW)
    return PolicyPerplexity(load_tokenizer(settings), window - 1, stride)  # vLLM writes a token behind
