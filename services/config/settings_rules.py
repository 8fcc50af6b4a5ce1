"""Rules between the parts of a run. Each part is valid by itself, but some parts do not work together.

These rules read only settings; `services/training/preflight/` reads files and prompts. Each rule gets the
parts that it reads. `name` is the algorithm's or the environment's. All rules raise a ValueError.
"""

from collections.abc import Sequence

from contracts.conversations.chat_settings import NONE, ChatSettings
from contracts.errors import did_you_mean
from learner.algorithms.base import Algorithm
from learner.mismatch_settings import MismatchSettings
from learner.optimization.kl_control import KLSettings
from learner.passes.known_passes import loads_reference
from reward_servers.settings import Part
from rollout_workers.engines.traits import traits_of
from rollout_workers.environments.base import EnvironmentSettings
from rollout_workers.settings import RolloutSettings
from services.config.cluster_settings import ClusterSettings
from services.config.curriculum_settings import AnyCurriculum, OwnCurriculum
from services.config.evaluation_settings import EvaluationSettings
from services.config.reward_view import ENVIRONMENT
from services.data.tasks.base import Task

# ---- algorithms ----


def check_group_size(algorithm: Algorithm, name: str, group_size: int) -> None:
    """Reject groups of one response if the algorithm compares responses with each other."""
    if group_size < 2 and algorithm.traits.default_group_size:
        raise ValueError(
            f"algorithm={name} measures a response against the others of its prompt: got "
            f"rollout.group_size={group_size}, expected 2 or more"
        )


def check_refills(algorithm: Algorithm, name: str, rollout: RolloutSettings) -> None:
    """Reject replacing prompts while workers write whole iterations ahead."""
    if algorithm.refills and rollout.max_staleness and rollout.order == "leased":
        raise ValueError(
            f"algorithm={name} replaces prompts that teach nothing (algorithm.max_refills="
            f"{algorithm.refills}), so it needs all rewards first: got rollout.max_staleness="
            f"{rollout.max_staleness}, expected 0, or rollout.order=finished, or algorithm.max_refills=0"
        )


def check_reference(algorithm: Algorithm, name: str, path: str | None) -> None:
    """Reject a teacher that is not used, and a student without a teacher.

    Args:
        path: path of a reference model; None: the reference is a copy of the model.
    """
    if algorithm.traits.teacher and path is None and not algorithm.asks_teacher:
        raise ValueError(
            f"algorithm={name} learns from a teacher: expected model.reference.path=MODEL, a model with "
            f"the same vocabulary, or algorithm.teacher.url=http://HOST:PORT/v1, if a server has one"
        )
    if path is not None and not algorithm.traits.online:
        raise ValueError(
            f"algorithm={name} uses no reference model in training: got model.reference.path={path}, "
            f"expected none. Data have log-probabilities of the model that annotated them (reference=MODEL)"
        )
    if path is not None and not loads_reference(algorithm):
        raise ValueError(
            f"algorithm.kl.measure_every=0 and algorithm.kl.coefficient=0 use no reference model: got "
            f"model.reference.path={path}, expected none, or algorithm.kl.measure_every=8"
        )


def check_curriculum(
    curriculum: AnyCurriculum | None, algorithm: Algorithm, name: str, priority_scale: float
) -> None:
    """Reject a curriculum over prompts that the policy does not answer, and weights that it would ignore."""
    if isinstance(curriculum, OwnCurriculum) and priority_scale:
        raise ValueError(
            f"curriculum={curriculum.by} chooses the prompts, but rollout.priority_scale={priority_scale:g} "
            f"would draw prompts by weight. Leave out rollout.priority_scale; choose() can read prompt.weight"
        )
    if curriculum is not None and not algorithm.traits.online:
        raise ValueError(
            f"curriculum={curriculum.by} follows the rewards of the model's answers, but algorithm="
            f"{name} learns from {algorithm.traits.learns_from}: leave curriculum out"
        )


# ---- evaluations ----


def check_decoding(
    evaluation: EvaluationSettings, stop: Sequence[str], algorithm: Algorithm, name: str
) -> None:
    """Reject a mask if the algorithm learns none, and beams with settings that beam search lacks.

    Args:
        stop: texts at which training's rollouts end.
    """
    beams = evaluation.num_beams
    if evaluation.masked and not algorithm.traits.masks:
        raise ValueError(f"evaluation.masked=true needs a mask, but algorithm={name} has none")
    if evaluation.length_penalty != 1 and beams == 1:
        raise ValueError(
            f"evaluation.length_penalty={evaluation.length_penalty:g} weights beams, but there is only one; "
            f"expected evaluation.num_beams=2 or more with it"
        )
    if beams > 1:
        if evaluation.temperature != 0:
            raise ValueError(
                f"evaluation.num_beams={beams} is beam search, which does not sample: "
                "expected evaluation.temperature=0 with it"
            )
        if stop or evaluation.masked:
            raise ValueError(
                f"evaluation.num_beams={beams}: beam search supports neither rollout.stop nor a mask"
            )


def check_passing(pass_by: str, reward: Sequence[Part]) -> None:
    """Reject an `evaluation.pass_by` that names a reward which the run lacks.

    A metric's name is known only at the first evaluation.
    """
    kind, _, label = pass_by.partition("/")
    labels = [*(part.label for part in reward), ENVIRONMENT]
    if kind == "reward" and label and label not in labels:
        raise ValueError(
            f"evaluation.pass_by={pass_by}: there is no reward {label}{did_you_mean(label, labels)}"
        )


# ---- chat templates ----


def check_template(template: str, chat: ChatSettings) -> None:
    """Reject settings of which one requires a chat template and another forbids it.

    Args:
        template: environment.template: "auto", "chat" or "plain".
    """
    chosen = chat.template
    if (template == "plain" and chat.is_explicit) or (template == "chat" and chosen == NONE):
        raise ValueError(
            f"environment.template={template} and model.chat.template={chosen} contradict each other: leave "
            f"out one of them"
        )


# ---- environments ----


def check_target_return(
    algorithm: Algorithm,
    name: str,
    environment: EnvironmentSettings,
    environment_name: str,
    reward: Sequence[Part],
    *,
    plays: bool,
) -> None:
    """Reject a target return if the algorithm does not learn to reach it, and the reverse.

    Args:
        plays: whether rollouts are episodes of the environment.
    """
    target, learns = environment.target_return, algorithm.traits.target_return
    if learns and (target is None or not plays):
        raise ValueError(
            f"algorithm={name} learns to reach the return that its contexts name: "
            f"expected environment.target_return=NUMBER, the return to ask for, with an environment "
            f"of several turns; got environment={environment_name}, target_return={target}"
        )
    if learns and (reward or not environment.rewards_itself):
        raise ValueError(
            f"algorithm={name}: contexts contain the environment's return: "
            f"expected an environment that rewards by itself, and reward=[]"
        )
    if target is not None and not learns:
        raise ValueError(
            f"environment.target_return={target:g} is for models that learned to read it: "
            f"expected algorithm=return_conditioned with it, got algorithm={name}"
        )


def check_patience(environment: EnvironmentSettings, name: str, stall_timeout_s: float) -> None:
    """Reject an environment that may take longer than a worker may be silent."""
    patience_s = max(environment.start_timeout_s, environment.step_timeout_s)
    if patience_s >= stall_timeout_s:
        raise ValueError(
            f"environment={name}: an environment may take {patience_s:g} s (start_timeout_s, "
            f"step_timeout_s), but a worker is replaced after rollout.stall_timeout_s={stall_timeout_s:g}; "
            f"expected rollout.stall_timeout_s above {patience_s:g}"
        )


def check_marks(task: Task, environment: EnvironmentSettings) -> None:
    """Reject two different marks for the end of an utterance."""
    mark, separator = getattr(task, "eou_token", None), getattr(environment, "separator", None)
    if mark and separator and mark != separator:
        raise ValueError(
            f"task.eou_token={mark!r} and environment.separator={separator!r} end the same utterances: "
            f"expected the same mark"
        )


def check_answers(environment: EnvironmentSettings, name: str, num_beams: int) -> None:
    """Reject beams, and example actions in an environment that does not list valid answers."""
    where = f"environment={name}"
    if num_beams > 1:
        raise ValueError(f"{where}: answers are sampled, got evaluation.num_beams={num_beams}; expected 1")
    if environment.example_rate and not environment.has_baselines:
        raise ValueError(
            f"{where}: got example_rate={environment.example_rate:g}, but this environment does not "
            f"say which answers are valid; expected 0"
        )


def check_own_reward(environment: EnvironmentSettings, name: str, reward: Sequence[Part]) -> None:
    """Reject a reward with the label of the environment's own reward."""
    if environment.rewards_itself and any(part.label == ENVIRONMENT for part in reward):
        raise ValueError(
            f"environment={name}: the environment's own reward has label '{ENVIRONMENT}'; give yours another "
            f"label"
        )


def check_expert(
    algorithm: Algorithm, name: str, environment: EnvironmentSettings, environment_name: str
) -> None:
    """Reject imitation of an expert that the environment lacks, or of texts that no expert writes."""
    if algorithm.traits.learns_from != "references":
        return
    where = f"environment={environment_name}"
    if not environment.has_baselines:
        raise ValueError(
            f"algorithm={name} with {where} learns from an expert's play, but this "
            f"environment has no expert; leave environment out to learn from the task's references"
        )
    if algorithm.loss_over == "text":
        raise ValueError(
            f"algorithm.loss_on=text with {where}: training imitates the expert's answers, not the "
            f"environment's texts; expected algorithm.loss_on=response"
        )


def check_endless(algorithm: Algorithm, environment_name: str, *, ignore_eos: bool, plays: bool) -> None:
    """Reject endless texts if something waits for their end."""
    if not ignore_eos:
        return
    if plays:
        raise ValueError(
            f"environment={environment_name} answers at the end of each of the model's turns: got "
            f"rollout.ignore_eos=true, expected false"
        )
    if algorithm.leaves_out_truncated:
        raise ValueError(
            "algorithm.filter_truncated=true leaves out texts that reach the token limit, but with "
            "rollout.ignore_eos=true all texts do; expected one of the two"
        )


# ---- corrections of a loss ----


def check_corrections(
    algorithm: Algorithm, name: str, mismatch: MismatchSettings, kl: KLSettings, num_rollouts: int
) -> None:
    """Reject masks of tokens if a loss has no ratios of tokens, and steps that make β negative."""
    if algorithm.traits.whole_responses and (mismatch.mask_below or mismatch.mask_above):
        raise ValueError(
            f"learner.mismatch.mask_below and mask_above leave out tokens, but algorithm={name} has one "
            "ratio for a whole response; expected learner.mismatch.mask_responses_beyond, or none of them"
        )
    least = int(0.2 * num_rollouts)  # the controller's error is at most 0.2
    if kl.target is not None and kl.controller == "ziegler" and kl.horizon <= least:
        raise ValueError(
            f"algorithm.kl.horizon={kl.horizon:g} with {num_rollouts} rollouts an iteration: one step could "
            f"make the coefficient negative; expected more than {least}"
        )


# ---- processes ----


def check_early_scores(num_learners: int, max_staleness: int, why_not_early: str | None) -> None:
    """Reject early scoring if weights change meanwhile, or if ranks would have to agree.

    Args:
        why_not_early: why the algorithm can't score early; None if it can.
    """
    if max_staleness:
        raise ValueError(
            f"learner.score_early=true with rollout.max_staleness={max_staleness}: the learner then trains "
            "while workers write; expected one of the two"
        )
    if why_not_early:
        raise ValueError(f"learner.score_early=true: {why_not_early}; expected learner.score_early=false")
    if num_learners > 1:
        raise ValueError(
            f"learner.score_early=true with learner.num_processes={num_learners}: ranks score a "
            "batch together; expected one process, or learner.score_early=false"
        )


def check_split_engine(
    rollout: RolloutSettings, cluster: ClusterSettings, algorithm: Algorithm, name: str, serve: str
) -> None:
    """Reject an engine without the algorithm's mask, and settings that exclude a split over several GPUs.

    Args:
        serve: "adapter" or "merged": the form in which workers get an adapter's weights.
    """
    if algorithm.traits.masks and not traits_of(rollout.engine).masks:
        raise ValueError(f"algorithm={name}: rollout.engine={rollout.engine} has no mask; expected auto")
    size, gpus = rollout.tensor_parallel_size, cluster.worker_gpus
    if size == 1:
        return
    where = f"rollout.tensor_parallel_size={size}"
    if not traits_of(rollout.engine).splits:
        raise ValueError(
            f"{where}: rollout.engine={rollout.engine} can't split models; leave it out, or set 1"
        )
    if algorithm.traits.masks:
        raise ValueError(f"{where}: algorithm={name}'s mask needs one GPU; expected 1")
    if serve == "adapter":
        raise ValueError(f"{where} needs merged adapters; expected model.adapter.serve=merged")
    if gpus and gpus != size:
        raise ValueError(f"{where} needs as many GPUs, got cluster.worker_gpus={gpus:g}; expected {size}")
