"""The command `whetstone`, and `python -m whetstone`."""

import sys

from whetstone.own_place import leave_users_folders_to_the_end


def main() -> int:
    leave_users_folders_to_the_end()
    from services.cli import main as run_command

    return run_command()


if __name__ == "__main__":
    sys.exit(main())
