"""Work of `reward_servers.verifiers.code`, confined as on a kernel without Landlock."""

from reward_servers.isolation import confinement
from reward_servers.verifiers import code

perform, ask, serve = code.perform, code.ask, code.serve


def prepare() -> None:
    confinement.landlock_version = lambda: 0
    code.prepare()
