"""Hash of a model's files, by samples, because reading them whole takes minutes."""

import hashlib
from pathlib import Path

MODEL_FILES = ("*.json", "*.safetensors", "*.bin")
SAMPLES, SAMPLE = 64, 1 << 16  # places to read in a file, and the bytes at each
TEXT_FILES = ("*.jinja", "*.model", "*.txt")  # templates and tokenizers


def fingerprint(folder: Path, *, texts: bool = False) -> str:
    """Return a hash of the names, sizes and samples of a model's files.

    Args:
        texts: include templates and all kinds of tokenizers, beside weights and settings.
    """
    digest = hashlib.sha256()
    patterns = (*MODEL_FILES, *(TEXT_FILES if texts else ()))
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern)}):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in range(0, size, max(SAMPLE, size // SAMPLES)):
                file.seek(place)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()
