"""What an evaluation asks of the workers: prompts that training never saw, the same ones every time."""

from contracts.rollout import Lease
from services.evaluation import AsRead
from services.leasing import evaluation_leases
from services.model_files import read_model
from services.policy_perplexity import PolicyPerplexity
from services.preflight import prompts_of
from services.prompt_tokens import PromptTokens
from services.settings import RunSettings
from services.tasks.base import Split

LARGEST_WINDOW = 1024  # tokens; some models' windows are far larger than what a worker's cache holds


def held_out_leases(settings: RunSettings, split: Split) -> list[Lease]:
    """Prompts and seeds of a split's evaluation."""
    from services.train import load_tokenizer

    return evaluation_leases(
        prompts_of(settings, split)[: settings.evaluation.num_prompts],
        PromptTokens(load_tokenizer(settings), settings.prompt_limit(split)),
        settings.sampling(evaluating=True),
        samples=settings.evaluation.samples_per_prompt,
        seed=settings.seed,
    )


def prompt_reader(settings: RunSettings) -> AsRead:
    """Return the function that tells what the model reads of a prompt."""
    from services.train import load_tokenizer

    return PromptTokens(load_tokenizer(settings)).text


def policy_perplexity(settings: RunSettings) -> PolicyPerplexity | None:
    """What computes the references' perplexity under the policy, if the settings ask for it."""
    from services.train import load_tokenizer

    stride = settings.evaluation.perplexity_stride
    if stride is None:
        return None
    window = min(read_model(settings.model).window or LARGEST_WINDOW, LARGEST_WINDOW)
    # vLLM writes a token behind: the window is one shorter
    return PolicyPerplexity(load_tokenizer(settings), window - 1, stride, settings.evaluation.perplexity_meta)
