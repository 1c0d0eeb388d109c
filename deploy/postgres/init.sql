-- Users and permissions of MLflow have a database of their own.
CREATE DATABASE mlflow_auth;
