"""Checks of `tracking.` before a run starts, because MLflow itself would only warn, and later."""

import os
from importlib.metadata import entry_points
from urllib.parse import urlsplit

from contracts.errors import InputError, did_you_mean
from contracts.secrets.redaction import redact
from contracts.whole_texts import expect_whole
from services.runs.tracking.settings import TrackingSettings
from services.runs.tracking.sinks import missing_packages

DATABASES = ("mssql", "mysql", "postgresql", "sqlite")
SERVERS = ("http", "https")
PLUGINS = "mlflow.tracking_store"  # entry points of packages with their own store
LONGEST_NAME = 500  # longest name of an experiment
OF_FILES = "MLFLOW_ALLOW_FILE_STORE"


def check_tracking(settings: TrackingSettings) -> None:
    """Check the address and the experiment's name.

    Raises:
        InputError: MLflow has no store for the address, or can't use it; the name is empty or too long; or a
            tracker's package is not installed.
    """
    if not settings.enabled:
        return
    name = settings.experiment
    expect_whole(name, "tracking.experiment")
    if not name.strip() or len(name) > LONGEST_NAME:
        raise InputError(
            f"tracking.experiment: got {len(name)} characters; expected a name of 1 to {LONGEST_NAME}"
        )
    if missing := missing_packages(settings.also):
        raise InputError(
            f"tracking.also={','.join(settings.also)}: not installed: {', '.join(missing)}; "
            f"python -m pip install {' '.join(missing)}"
        )
    if settings.uri not in (None, "databricks"):
        try:
            _check_address(settings.uri, f"tracking.uri={redact(settings.uri)}")
        except ValueError as error:  # from urlsplit, for example for a bracket
            raise InputError(f"tracking.uri={redact(settings.uri)}: is not an address: {error}") from None


def _check_address(uri: str, where: str) -> None:
    parts = urlsplit(uri)
    scheme, _, _ = parts.scheme.partition("+")  # postgresql+psycopg also names a driver
    if scheme in SERVERS:
        if not parts.hostname or parts.port == 0:
            raise InputError(f"{where}: expected a server, such as http://127.0.0.1:5000")
    elif scheme in DATABASES:
        _check_database(uri, where)
    elif scheme in ("", "file"):
        if os.environ.get(OF_FILES, "").lower() not in ("true", "1"):
            raise InputError(
                f"{where}: MLflow no longer writes into folders; expected sqlite:////FOLDER/mlflow.db, or "
                f"{OF_FILES}=true in the environment"
            )
    else:
        known = {
            *SERVERS,
            *DATABASES,
            "databricks",
            *(entry_point.name for entry_point in entry_points(group=PLUGINS)),
        }
        if scheme in known:
            return
        raise InputError(f"{where}: MLflow has no store for {scheme}://{did_you_mean(scheme, known)}")


def _check_database(uri: str, where: str) -> None:
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    try:
        url = make_url(uri)
        dialect = url.get_dialect()
        dialect.import_dbapi()
    except (ArgumentError, NoSuchModuleError, ValueError) as error:
        raise InputError(f"{where}: is not a database's address: {redact(str(error))}") from None
    except ImportError as error:
        raise InputError(
            f"{where}: the driver of this database is not installed: {error}; python -m pip install "
            f"{error.name or 'it'}"
        ) from None
    if dialect.name == "sqlite" and (url.host or not url.database):
        raise InputError(f"{where}: expected sqlite:///FILE, or sqlite:////FOLDER/FILE from the root")
