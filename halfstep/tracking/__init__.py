"""Everything that uses MLflow. The pipeline's files hold the results; the tracking store only shows them."""

import logging
import os

# MLflow reads these when it is imported or used. By default, a server that does not answer blocks a call for four
# minutes; with these settings it is 10 s, and a stage makes no more calls after the first one that fails. A server that
# answers byte by byte may take longer.
os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "5")
# A response with status 429 or 503 may ask for a retry after an hour, and MLflow would wait that long.
os.environ.setdefault("MLFLOW_HTTP_RESPECT_RETRY_AFTER_HEADER", "false")
os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")  # the server's URI may hold a password
os.environ.pop("MLFLOW_RUN_ID", None)  # would replace every run that is started here
# Failed requests raise an exception, too, which is reported in one line.
for _logger in ("urllib3.connectionpool", "mlflow.exceptions"):
    logging.getLogger(_logger).setLevel(logging.ERROR)
