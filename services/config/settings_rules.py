"""Rules between the parts of a run: each part is valid by itself, but they may not work together.

These rules read the settings alone. `services/preflight/` reads files and prompts.
"""

from contracts.chat_settings import NONE
from contracts.errors import did_you_mean
from learner.known_passes import loads_reference
from services.config.reward_view import ENVIRONMENT
from services.config.run_parts import RunParts


def check_environment(run: RunParts) -> None:
    """Refuse settings that do not fit an environment of several turns.

    Raises:
        ValueError: two settings contradict each other.
    """
    _check_target_return(run)
    _check_early_scores(run)
    if not run.plays:
        return
    where = f"environment={run.environment_name}"
    patience_s = max(run.environment.start_timeout_s, run.environment.step_timeout_s)
    if patience_s >= run.rollout.stall_timeout_s:
        raise ValueError(
            f"{where}: an environment may take {patience_s:g} s (start_timeout_s, step_timeout_s), and a "
            f"worker is given up after rollout.stall_timeout_s={run.rollout.stall_timeout_s:g}; "
            f"expected rollout.stall_timeout_s above {patience_s:g}"
        )
    mark, separator = getattr(run.task, "eou_token", None), getattr(run.environment, "separator", None)
    if mark and separator and mark != separator:
        raise ValueError(
            f"task.eou_token={mark!r} and environment.separator={separator!r} end the same utterances: "
            f"expected the same mark"
        )
    if (beams := run.evaluation.num_beams) > 1:
        raise ValueError(f"{where}: answers are drawn, got evaluation.num_beams={beams}; expected 1")
    if run.environment.example_rate and not run.environment.has_baselines:
        raise ValueError(
            f"{where}: got example_rate={run.environment.example_rate:g}, and this environment does not "
            f"say which answers are valid; expected 0"
        )
    if run.environment.rewards_itself and any(part.label == ENVIRONMENT for part in run.reward):
        raise ValueError(
            f"{where}: the environment's own reward has label '{ENVIRONMENT}'; give yours another label"
        )
    if run.plays_experts and not run.environment.has_baselines:
        raise ValueError(
            f"algorithm={run.algorithm_name} with {where} learns from an expert's play, and this "
            f"environment has no expert; leave environment out to learn from the task's references"
        )
    if run.plays_experts and run.algorithm.loss_over == "text":
        raise ValueError(
            f"algorithm.loss_on=text with {where}: training imitates the expert's answers, not the "
            f"environment's texts; expected algorithm.loss_on=response"
        )


def check_template(run: RunParts) -> None:
    """Refuse one setting that asks for a chat template, beside another that asks for none.

    Raises:
        ValueError: two settings contradict each other.
    """
    template, asked = run.environment.template, run.model.chat.template
    if (template == "plain" and run.model.chat.is_explicit) or (template == "chat" and asked == NONE):
        raise ValueError(
            f"environment.template={template} and model.chat.template={asked} contradict each other: leave "
            f"out one of them"
        )


def _check_target_return(run: RunParts) -> None:
    """Refuse a target return without an algorithm that learns to reach it, and the reverse."""
    target = run.environment.target_return
    learns = run.algorithm.traits.target_return
    if learns and (target is None or not run.plays):
        raise ValueError(
            f"algorithm={run.algorithm_name} learns to reach the return that its contexts name: "
            f"expected environment.target_return=NUMBER, the return to ask for, with an environment "
            f"of several turns; got environment={run.environment_name}, target_return={target}"
        )
    if learns and (run.reward or not run.environment.rewards_itself):
        raise ValueError(
            f"algorithm={run.algorithm_name}: contexts name the return that the environment gave: "
            f"expected an environment that rewards by itself, and reward=[]"
        )
    if target is not None and not learns:
        raise ValueError(
            f"environment.target_return={target:g} is for models that learned to read it: "
            f"expected algorithm=return_conditioned with it, got algorithm={run.algorithm_name}"
        )


def _check_early_scores(run: RunParts) -> None:
    """Refuse to score early where the weights change meanwhile, or where ranks would have to agree."""
    if not run.learner.score_early:
        return
    ahead, ranks = run.rollout.max_staleness, run.learner.num_processes
    if ahead:
        raise ValueError(
            f"learner.score_early=true with rollout.max_staleness={ahead}: the learner then trains while "
            "workers write; expected one of the two"
        )
    if why := run.why_not_early:
        raise ValueError(f"learner.score_early=true: {why}; expected learner.score_early=false")
    if ranks > 1:
        raise ValueError(
            f"learner.score_early=true with learner.num_processes={ranks}: ranks score a batch together; "
            "expected one process, or learner.score_early=false"
        )


def check_engine(run: RunParts) -> None:
    """Refuse settings that do not fit an engine that is split over several GPUs.

    Raises:
        ValueError: two settings contradict each other.
    """
    size, gpus = run.rollout.tensor_parallel_size, run.cluster.worker_gpus
    if size == 1:
        return
    where = f"rollout.tensor_parallel_size={size}"
    if run.rollout.engine == "transformers":
        raise ValueError(f"{where} is for vLLM; leave out rollout.engine=transformers, or set 1")
    if run.algorithm.traits.masks:
        raise ValueError(f"{where}: algorithm={run.algorithm_name}'s mask needs one GPU; expected 1")
    if run.model.adapter.serve == "adapter":
        raise ValueError(f"{where} needs merged adapters; expected model.adapter.serve=merged")
    if gpus and gpus != size:
        raise ValueError(f"{where} needs as many GPUs, got cluster.worker_gpus={gpus:g}; expected {size}")


def _check_reference(run: RunParts) -> None:
    """Refuse a teacher that nobody asks, and a student without one."""
    name, traits, path = run.algorithm_name, run.algorithm.traits, run.model.reference.path
    if traits.teacher and path is None:
        raise ValueError(
            f"algorithm={name} learns from a teacher: expected model.reference.path=MODEL, another model of "
            f"the same vocabulary"
        )
    if path is not None and not traits.online:
        raise ValueError(
            f"algorithm={name} asks no reference model while it trains: got model.reference.path={path}, "
            f"expected none. Data have the log-probabilities of the one that annotated them (reference=MODEL)"
        )
    if path is not None and not loads_reference(run.algorithm):
        raise ValueError(
            f"algorithm.kl.measure_every=0 and algorithm.kl.coefficient=0 ask no reference model: got "
            f"model.reference.path={path}, expected none, or algorithm.kl.measure_every=8"
        )


def check_passing(run: RunParts) -> None:
    """Refuse an `evaluation.pass_by` that names a reward which the run does not have.

    Raises:
        ValueError: there is no such reward. A metric's name is known only at the first evaluation.
    """
    kind, _, label = run.evaluation.pass_by.partition("/")
    labels = [*(part.label for part in run.reward), ENVIRONMENT]
    if kind == "reward" and label and label not in labels:
        raise ValueError(
            f"evaluation.pass_by={run.evaluation.pass_by}: there is no reward "
            f"{label}{did_you_mean(label, labels)}"
        )


def check_curriculum(run: RunParts) -> None:
    """Refuse a curriculum over prompts that the policy does not answer.

    Raises:
        ValueError: nothing tells how often a prompt is solved.
    """
    if run.curriculum is not None and not run.algorithm.traits.online:
        raise ValueError(
            f"curriculum={run.curriculum.by} follows the rewards of the model's own answers, and algorithm="
            f"{run.algorithm_name} learns from {run.algorithm.traits.learns_from}: leave curriculum out"
        )


def check_algorithm(run: RunParts) -> None:
    """Refuse settings that do not fit the algorithm.

    Raises:
        InputError, ValueError: two settings contradict each other.
    """
    name = run.algorithm_name
    run.model.drops_out(run.algorithm)  # raises where dropout does not fit
    if run.group_size < 2 and run.algorithm.traits.default_group_size:
        raise ValueError(
            f"algorithm={name} measures a response against the others of its prompt: got "
            f"rollout.group_size={run.group_size}, expected 2 or more"
        )
    if run.algorithm.refills and run.rollout.max_staleness:
        raise ValueError(
            f"algorithm={name} replaces prompts that teach nothing (algorithm.max_refills="
            f"{run.algorithm.refills}), which is known only once all rewards are: got rollout.max_staleness="
            f"{run.rollout.max_staleness}, expected 0, or algorithm.max_refills=0"
        )
    _check_reference(run)
    if run.evaluation.masked and not run.algorithm.traits.masks:
        raise ValueError(f"evaluation.masked=true asks for a mask, and algorithm={name} has none")
    penalty = run.evaluation.length_penalty
    if penalty != 1 and run.evaluation.num_beams == 1:
        raise ValueError(
            f"evaluation.length_penalty={penalty:g} weighs beams, and there is only one; expected "
            f"evaluation.num_beams=2 or more with it"
        )
    if (beams := run.evaluation.num_beams) > 1:
        if run.evaluation.temperature != 0:
            raise ValueError(
                f"evaluation.num_beams={beams} is beam search, which does not sample: "
                "expected evaluation.temperature=0 with it"
            )
        if run.rollout.stop or run.evaluation.masked:
            raise ValueError(
                f"evaluation.num_beams={beams}: beam search supports neither rollout.stop nor a mask"
            )
