"""What holds for every test: no network but loopback, no reports of usage."""

import os

collect_ignore = ["raising"]  # its sitecustomize.py is for other processes

# Read by the libraries when they are first imported, also in the processes that tests start.
os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_DATASETS_OFFLINE="1",
    RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0",  # Ray's ports on loopback, as services/cli.py has them
    RAY_USAGE_STATS_ENABLED="0",
    MLFLOW_DISABLE_TELEMETRY="true",
    TOKENIZERS_PARALLELISM="false",
)
