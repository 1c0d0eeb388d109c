"""Users of the tracking server and what they may do. Run it as the administrator, in the server's container.

python /users.py create USER                              asks for the password: 12 characters or more
python /users.py grant USER EXPERIMENT [PERMISSION]       READ, EDIT (the default), MANAGE or NO_PERMISSIONS
"""

import argparse
import getpass
import os
import sys

os.environ.setdefault("MLFLOW_TRACKING_USERNAME", "admin")
os.environ.setdefault("MLFLOW_TRACKING_PASSWORD", os.environ.get("MLFLOW_AUTH_ADMIN_PASSWORD", ""))

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.server import get_app_client


def main() -> None:
    """Reads the arguments, and makes one change."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("create", "grant"))
    parser.add_argument("user")
    parser.add_argument("experiment", nargs="?")
    parser.add_argument("permission", nargs="?", default="EDIT")
    given = parser.parse_args()
    uri = os.environ.get("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000")
    users = get_app_client("basic-auth", uri)
    try:
        if given.action == "create":
            users.create_user(given.user, password_of(given.user))
            return
        experiment = MlflowClient(uri).get_experiment_by_name(given.experiment or "")
        if experiment is None:
            parser.error(f"there is no experiment {given.experiment!r}")
        users.grant_user_permission(given.user, "experiment", experiment.experiment_id, given.permission)
    except MlflowException as error:
        sys.exit(str(error).splitlines()[0])


def password_of(user: str) -> str:
    """The password, typed on a terminal or read from standard input."""
    return getpass.getpass(f"password of {user}: ") if sys.stdin.isatty() else sys.stdin.readline().rstrip("\n")


main()
