"""Everything that talks to MLflow. The files of the pipeline are the truth; what is in MLflow is a view of them."""

import os

# Read by MLflow when it is first imported or used. A server that does not answer blocks a call for four minutes at
# MLflow's own settings; with these it is 10 s, and a run asks no more after the first call that fails.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # the server's URI, with its password
os.environ.pop("MLFLOW_RUN_ID", None)  # would silently take the place of every run that is begun here
