"""A working folder with a reward, and packages named like ours, like libraries and like Python's."""

from pathlib import Path

# Each would end the process that imports it.
NAMES = (
    *("contracts", "conf", "learner", "reward_servers", "rollout_workers", "services", "tests"),
    *("datasets", "json", "numpy", "ray", "torch", "transformers", "vllm"),
)
REWARD = '''
import word_lists


class Variety:
    """The share of different words."""

    def score(self, samples):
        return [word_lists.variety(sample.text) for sample in samples]
'''
HELPER = """
def variety(text):
    words = text.split()
    return len(set(words)) / max(len(words), 1)
"""


def make_hostile(folder: Path) -> Path:
    """Fill the folder. `my_rewards:Variety` is the reward; its helper is a module beside it."""
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('the folder {name}/ was imported')\n")
    (folder / "my_rewards.py").write_text(REWARD)
    (folder / "word_lists.py").write_text(HELPER)
    (folder / "wandb" / "run-1").mkdir(parents=True)  # results: no package, and not installed
    return folder
