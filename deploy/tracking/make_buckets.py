"""`python make_buckets.py NAME...`: creates missing buckets in the S3 service at `MLFLOW_S3_ENDPOINT_URL`."""

import os
import sys

import boto3

s3 = boto3.client("s3", endpoint_url=os.environ["MLFLOW_S3_ENDPOINT_URL"])
known = {bucket["Name"] for bucket in s3.list_buckets()["Buckets"]}
for name in sys.argv[1:]:
    if name not in known:
        s3.create_bucket(Bucket=name)
