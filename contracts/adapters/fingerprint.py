"""Hash of a model's files, by samples: reading all of them takes minutes."""

import hashlib
from pathlib import Path

MODEL_FILES = ("*.json", "*.safetensors", "*.bin")
SAMPLES, SAMPLE = 64, 1 << 16  # places of a file that are read, and the bytes at each


def fingerprint(folder: Path) -> str:
    """Return a hash of the names, sizes and samples of a model's files."""
    digest = hashlib.sha256()
    for path in sorted({path for pattern in MODEL_FILES for path in folder.glob(pattern)}):
        size = path.stat().st_size
        digest.update(f"{path.name} {size}\n".encode())
        with path.open("rb") as file:
            for place in range(0, size, max(SAMPLE, size // SAMPLES)):
                file.seek(place)
                digest.update(file.read(SAMPLE))
    return digest.hexdigest()
