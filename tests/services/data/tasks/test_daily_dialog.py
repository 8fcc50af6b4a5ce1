"""DailyDialog as OpenRL trains it: two iterations with tiny models and parts of one's own."""

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.scores import Sample
from services.config.compose import run_settings
from services.runs.claim import flatten
from services.runs.folder import RunFolder
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.reward_servers.tiny_models import make_classifier
from tests.stand_ins import write_data

PAGES = Path(__file__).parents[4] / "docs"
BLOCK = re.compile(r"```python\n# (\w+)\.py\n(.*?)```", re.DOTALL)
MODULES: dict[str, str] = {}
for page in ("extending.md", "rewards.md"):
    for name, body in BLOCK.findall((PAGES / page).read_text()):  # several blocks may be of one file
        MODULES[name] = f"{MODULES.get(name, '')}{body}\n"
OWN = ("my_rewards", "my_policy", "my_critic", "my_measure")
WORDS = ("train", "validation", "test", ".", "<EOU>", *map(str, range(40)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunFolder]:
    """Two iterations under the experiment's own options, but for sizes."""
    place = tmp_path_factory.mktemp("daily_dialog")
    for name in OWN:
        (place / f"{name}.py").write_text(MODULES[name])
    intents = make_classifier(
        place / "intents", kind="gpt2", labels=("inform", "question", "directive", "commissive")
    )
    model = make_tiny_model(place / "model", architecture="gpt2", vocab=WORDS)
    intent = f"name: intent_accuracy, model: '{intents}'"
    mine = "{name: 'my_rewards:Brevity', weight: 0.1}"
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(place))
        patch.setattr("services.terminal.interrupts.signal.signal", lambda number, handler: None)
        run = run_settings(
            [
                "experiment=daily_dialog_openrl",
                f"model.path='{model}'",
                "model.tokenizer=null",
                "model.value_trunk=shared",  # as this critic wants it
                "model.policy=my_policy:LastThird",
                "model.critic=my_critic:DetachedCritic",
                f"reward=[{{{intent}, weight: 0.5}}, {{name: meteor, weight: 0.5}}, {mine}]",
                f"metrics=[{{{intent}}}]",
                "measures=['my_measure:Episodes']",
                "algorithm.dual_clip=3",
                "algorithm.critic_learning_rate=1e-3",
                "learner.autocast=bfloat16",
                f"task.data_files='{write_data(place / 'data', 'daily_dialog')}'",
                f"output_dir='{place / 'runs'}'",
                "iterations=2",
                "rollout.prompts_per_iteration=8",
                "rollout.max_prompt_tokens=32",
                "rollout.engine=transformers",
                "tracking.enabled=false",
            ]
        )
        yield train_here(run)


def test_every_part_of_the_reward_is_logged_and_they_add_up(folder: RunFolder) -> None:
    for row in folder.rollout_info():
        intent, meteor, brevity = (
            row[f"reward/{name}/mean"] for name in ("intent_accuracy", "meteor", "Brevity")
        )
        assert row["reward/mean"] == pytest.approx(0.5 * intent + 0.5 * meteor + 0.1 * brevity)
        assert 0 <= intent <= 1 and 0 <= meteor <= 1
        assert brevity == 1.0  # 20 tokens are at most 20 words
        shares = [row[f"reward/{name}/share"] for name in ("intent_accuracy", "meteor", "Brevity")]
        assert sum(shares) == pytest.approx(1)


def test_the_coefficient_follows_the_kl_by_two_percent_at_most(folder: RunFolder) -> None:
    """No KL at first: 100 % under the target, which counts as 20 %, of which a tenth is taken."""
    first, second = folder.rollout_info()
    assert first["kl/mean"] == pytest.approx(0, abs=1e-3)
    assert (first["kl/coefficient"], second["kl/coefficient"]) == pytest.approx((0.2, 0.2 * 0.98))


def test_replies_end_at_the_mark_or_at_twenty_tokens(folder: RunFolder) -> None:
    rows = folder.predictions(2, "val")
    texts = [row["generated_text"] for row in rows]
    assert not any("<EOU>" in text for text in texts)
    assert max(len(text.split()) for text in texts) == 20
    assert {row["ref_text"].count("<EOU>") for row in rows} == {0}  # compared with what can be written
    assert {row["prompt_text"].count("<EOU>") for row in rows} == {5}
    lengths = [row["response_length/mean"] for row in folder.rollout_info()]
    assert all(1 <= length <= 20 for length in lengths)
    assert any(0 < row["finish/stop"] < 1 for row in folder.rollout_info())


def test_policy_critic_and_measure_of_ones_own_took_part(folder: RunFolder) -> None:
    config = folder.config()
    assert config["model"]["policy"] == "my_policy:LastThird"
    assert config["measures"] == [{"name": "my_measure:Episodes"}]
    for row, training in zip(folder.rollout_info(), folder.training_info(), strict=True):
        assert sum(row.get(f"episodes/intent_{intent}", 0) for intent in (1, 2, 3, 4)) == 1
        assert row["episodes/best"] >= row["episodes/median"]
        assert training["loss/value"] > 0


def test_the_sources_hyper_parameters_are_the_experiments() -> None:
    run = run_settings(["experiment=daily_dialog_openrl"])
    algorithm = run.algorithm.model_dump()  # type: ignore[attr-defined]
    assert {key: algorithm[key] for key in ("learning_rate", "num_epochs", "clip_range", "entropy_coef")} == {
        "learning_rate": 1e-7,
        "num_epochs": 5,
        "clip_range": 0.2,
        "entropy_coef": 0.01,
    }
    assert (algorithm["gamma"], algorithm["gae_lambda"], algorithm["max_grad_norm"]) == (0.99, 0.95, 10)
    assert (algorithm["kl"]["coefficient"], algorithm["kl"]["target"]) == (0.2, 0.05)
    assert (algorithm["optimizer"]["eps"], algorithm["optimizer"]["weight_decay"]) == (1e-5, 0)
    # 100,000 tokens in windows of 5 · 128, which hold 32 replies of 20 tokens
    assert (run.iterations, run.rollout.prompts_per_iteration) == (100_000 // 640, 640 // 20)
    assert [(part.name, part.weight) for part in run.reward] == [("intent_accuracy", 0.5), ("meteor", 0.5)]


def test_the_page_of_the_documentation_composes() -> None:
    comments = re.findall(
        r"^# .*$", (PAGES.parent / "conf/experiment/daily_dialog_openrl.yaml").read_text(), re.M
    )
    overrides = re.findall(r"(?:algorithm|learner|rollout)\.\w+=\S+|iterations=\d+", " ".join(comments))
    run = run_settings(["experiment=daily_dialog_openrl", *overrides])
    assert len(overrides) == 5
    assert run.iterations == 100_000 // 256
    assert run.learner.autocast == "bfloat16"


def test_every_option_that_the_table_names_is_there() -> None:
    page = (PAGES / "from-openrl.md").read_text()
    code = " ".join(re.findall(r"`([^`\n]+)`", page)).split()
    options = [word for word in code if re.match(r"(algorithm|rollout|model|learner|task)\.\w", word)]
    overrides = [word for word in options if re.search(r"=[^A-Z]", word) and "package.module" not in word]
    assert len(overrides) > 20
    tree = flatten(run_settings(["experiment=daily_dialog_openrl", *overrides]).resolved())
    assert [word for word in options if word.partition("=")[0] not in tree] == []


def test_the_commands_with_parts_of_ones_own_are_accepted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in OWN:
        (tmp_path / f"{name}.py").write_text(MODULES[name])
    monkeypatch.syspath_prepend(str(tmp_path))
    text = "".join((PAGES / page).read_text() for page in ("rewards.md", "extending.md"))
    start = "whetstone train experiment=daily_dialog_openrl"
    (line,) = (line for line in text.replace("\\\n", " ").splitlines() if line.startswith(start))
    (parts,) = re.findall(r"```yaml\n(reward:\n.*?)```", text, re.DOTALL)
    (tmp_path / "mine.yaml").write_text(f"# @package _global_\ndefaults: [daily_dialog_openrl]\n{parts}")
    with_a_reward = run_settings([f"experiment={tmp_path / 'mine.yaml'}"])
    assert [(part.label, part.weight) for part in with_a_reward.reward] == [
        ("rouge", 0.5),
        ("length", 0.1),
        ("Brevity", 1.0),
    ]
    with_a_measure = run_settings(shlex.split(line)[2:])
    assert with_a_measure.resolved()["measures"] == [{"name": "my_measure:Episodes", "last": 50}]
    for name in OWN:
        sys.modules.pop(name, None)


def test_a_part_of_ones_own_scores_as_the_page_says() -> None:
    names: dict[str, type] = {}
    exec(MODULES["my_rewards"], names)
    assert names["Brevity"](limit=2).score([Sample("a b"), Sample("a b c")]) == [1.0, 0.0]
