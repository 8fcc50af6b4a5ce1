"""Numbers of deterministic runs and settings of every experiment, to compare two trees to the bit.

python -m tests.golden models FOLDER          tiny models and data that the runs start from, made once
python -m tests.golden record MODELS FOLDER   in each tree: the runs' lines, the experiments' settings
python -m tests.golden compare FOLDER FOLDER  every number that differs; the exit code says whether one does
"""

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

DIGESTS = Path(__file__).with_name("golden_settings.json")
CLI = (sys.executable, "-P", "-m", "services.cli")
FEW = (
    *("iterations=5", "evaluate_every=2", "save_every=0", "tracking.enabled=false"),
    *("rollout.prompts_per_iteration=8", "evaluation.num_prompts=4", "rollout.kv_cache_gib=0.25"),
    *("rollout.deterministic=true", "rollout.num_threads=1", "learner.num_threads=1", "learner.device=cpu"),
)
NUMBERS = (
    "task=increasing_numbers",
    "task.num_prompts=16",
    "task.num_eval_prompts=4",
    "rollout.max_tokens=12",
)
PLAYED = ("reward=[]", "metrics=[]", "rollout.max_tokens=8", "rollout.engine=transformers")
RUNS: dict[str, tuple[str, ...]] = {
    "ppo": ("model.path={models}/gpt", "algorithm=ppo", "rollout.engine=vllm", *NUMBERS),
    "nlpo": ("model.path={models}/gpt", "algorithm=nlpo", "rollout.engine=vllm", *NUMBERS),
    "trpo": ("model.path={models}/t5", "algorithm=trpo", "rollout.engine=transformers", *NUMBERS),
    "grpo": ("model.path={models}/t5", "algorithm=grpo", "rollout.engine=transformers", *NUMBERS),
    "a_lol": ("model.path={models}/gpt", "algorithm=a_lol", "data={models}/annotated", *NUMBERS),
    "dpo": ("model.path={models}/gpt", "algorithm=dpo", "data={models}/annotated", *NUMBERS),
    "dialogue": (
        *("model.path={models}/gpt", "algorithm=ppo", "environment=dialogue", "environment.max_turns=3"),
        *("environment.reward_at=turn", "reward=increasing_numbers", *NUMBERS, "rollout.engine=transformers"),
    ),
    "textworld": (
        *("model.path={models}/gpt", "algorithm=ppo", "environment=textworld", "task=textworld"),
        *(
            "task.challenge=coin_collector",
            "task.num_train=8",
            "task.num_validation=2",
            "task.num_test=2",
            "task.level=2",
        ),
        *("environment.max_turns=3", "rollout.max_prompt_tokens=100", *PLAYED),
    ),
}
# Options that came after the records, with the values at which they change nothing.
SINCE: dict[str, Sequence[Any]] = {
    "tracking.also": [[]],
    "tracking.model": [False],
    "evaluation.pass_by": ["reward"],
    "evaluation.pass_at": [1.0, None],
    "curriculum": [None],
    "stop_when": [[]],
    "notify": [{"url": None, "timeout_s": 10.0, "attempts": 3}],
    "learner.sum_gradients": ["micro_batch"],
    "learner.offload": [False],
    "learner.compile": [False],
    "learner.param_dtype": ["auto"],
    "learner.transport": ["auto"],
    "rollout.engine_args": [{}],
    "rollout.order": ["leased"],
    "learner.score_early": [None],
    "learner.mismatch": [
        {"weights": "auto", "mask_below": None, "mask_above": None, "mask_responses_beyond": None},
    ],
    "algorithm.kl.measure_every": [1, 8],
    "algorithm.top_entropy_share": [1.0],
    "algorithm.entropy_target": [None],
    "algorithm.entropy_step": [0.005],
    "algorithm.entropy_coef_max": [1.0],
    "model.adapter.roles": [[]],
    "model.reference": [{"path": None, "revision": None}],
    "model.chat": [
        {"template": "auto", "system": None, "options": {}, "history": "recorded", "date": None},
    ],
}
CLOCKS = ("time/", "timings/", "throughput/", "memory/", "idle")
ENDS = ("_s", "seconds", "_bytes")


def make(folder: Path) -> None:
    """Write a GPT, a T5 and an annotated data set of pairs."""
    from tests.models import make_tiny_model

    words = [str(number) for number in range(100)]
    make_tiny_model(folder / "gpt", architecture="gpt2", vocab=words, sharpness=3.0)
    make_tiny_model(folder / "t5", architecture="t5", vocab=words, sharpness=3.0)
    rows = [
        {
            "prompt": f"{i} {i + 1}",
            "response": " ".join(str(i + 2 + step * k) for k in range(7)),
            "good": step > 0,
        }
        for i in range(20, 44)
        for step in (1, -3)
    ]
    source = folder / "pairs"
    source.mkdir(parents=True)
    for split in ("train", "validation", "test"):
        (source / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    command = ["annotate", f"data.files={source}", "reward=increasing_numbers", f"reference={folder / 'gpt'}"]
    command += ["value=true", "value.num_epochs=1", "executor=here", f"output={folder / 'annotated'}"]
    command += ["rollout.max_tokens=8", "rollout.engine=transformers", "learner.device=cpu"]
    subprocess.run([*CLI, *command], check=True)


def record(models: Path, folder: Path) -> None:
    """Do the runs with the code of the working folder, and keep their numbers."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in RUNS.items():
        arguments_set = [argument.format(models=models) for argument in (*arguments, *FEW)]
        shutil.rmtree(folder / "runs" / name, ignore_errors=True)
        command = [*CLI, "train", f"output_dir={folder / 'runs'}", f"run_name={name}", *arguments_set]
        with (folder / f"{name}.out").open("w") as out:
            done = subprocess.run(command, stdout=out, stderr=out)
        print(f"{name}: exit code {done.returncode}", flush=True)
        kept = {
            path.name: [without_clocks(json.loads(line)) for line in path.read_text().splitlines()]
            for path in sorted((folder / "runs" / name).glob("*.jsonl"))
        }
        (folder / f"{name}.json").write_text(json.dumps(kept, indent=1, sort_keys=True))
    (folder / "settings.json").write_text(json.dumps(settings(), indent=1, sort_keys=True, default=str))


def settings() -> dict[str, Any]:
    """Return every experiment's settings, resolved."""
    try:
        from services.config.compose import choices_of, run_settings

        names: Sequence[str] = choices_of("experiment")
    except ImportError:  # the tree before packages and matrices
        from services.compose import CONF, run_settings

        folder = Path(CONF) / "experiment"
        names = sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))
    return {name: resolved(run_settings, name) for name in names}


def resolved(run_settings: Callable[[list[str]], Any], name: str) -> Any:
    """Return an experiment's settings, with a model where it names none, or why it is refused."""
    for needs in ([], ["model.path=gpt2"]):
        try:
            return run_settings([f"experiment={name}", *needs]).resolved()
        except Exception as error:
            refusal = f"{type(error).__name__}: {error}"
    return refusal


def without_clocks(value: Any) -> Any:
    """Drop what a clock or the machine says."""
    if isinstance(value, dict):
        return {
            k: without_clocks(v) for k, v in value.items() if not (k.startswith(CLOCKS) or k.endswith(ENDS))
        }
    return value


def compare(old: Path, new: Path) -> int:
    """Print every difference. Return the exit code."""
    num_differences = 0
    for path in sorted(old.glob("*.json")):
        before, after = (flat(json.loads((where / path.name).read_text())) for where in (old, new))
        if path.name == "settings.json":  # bases that experiments shared as files are no experiments
            before = {key: value for key, value in before.items() if key.split(".")[1] in names_of(after)}
        differing = [key for key in before | after if before.get(key) != after.get(key)]
        print(f"{path.name}: {len(before)} values, {len(differing)} differ")
        for key in differing[:20]:
            print(f"  {key}: {before.get(key)} → {after.get(key)}")
        num_differences += len(differing)
    return 1 if num_differences else 0


def digests() -> dict[str, str]:
    """Return a digest of each experiment's settings."""
    return {name: digest(tree) for name, tree in settings().items()}


def digest(tree: Any) -> str:
    """Return a digest of settings, without options that are younger than the records and at their defaults.

    A new option that does nothing unless it is given changes no experiment.
    """
    for key, harmless in SINCE.items():
        *path, last = key.split(".")
        section = tree if isinstance(tree, dict) else {}
        for name in path:
            section = section.get(name, {})
        if last in section and section[last] in harmless:
            del section[last]
    return hashlib.sha256(json.dumps(tree, sort_keys=True, default=str).encode()).hexdigest()[:16]


def names_of(settings: dict[str, Any]) -> set[str]:
    return {key.split(".")[1] for key in settings}


def flat(tree: Any, key: str = "") -> dict[str, Any]:
    """Return leaves by dotted key."""
    if isinstance(tree, dict):
        return {k: v for name in tree for k, v in flat(tree[name], f"{key}.{name}").items()}
    if isinstance(tree, list):
        return {k: v for i, part in enumerate(tree) for k, v in flat(part, f"{key}[{i}]").items()}
    return {key: tree}


def main() -> int:
    """Run the command that the arguments name."""
    match sys.argv[1:]:
        case ["models", folder]:
            make(Path(folder).absolute())
        case ["record", models, folder]:
            record(Path(models).absolute(), Path(folder).absolute())
        case ["compare", old, new]:
            return compare(Path(old), Path(new))
        case ["settings"]:
            DIGESTS.write_text(json.dumps(digests(), indent=1, sort_keys=True) + "\n")
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
