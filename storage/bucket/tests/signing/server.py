"""An S3 server that verifies signatures: moto, whose own check is botocore's signer. Prints how to reach it, one variable a line,
and then serves until its standard input ends.

One request after the other: served by several threads, moto's conditional writes are not atomic.
"""

import json
import os
import sys
import threading

# Before moto is imported, which reads them once.
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

from moto import settings
from moto.iam.models import iam_backends
from moto.s3.models import s3_backends
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server

ACCOUNT = "123456789012"
BUCKET = "abc"


class Quiet(WSGIRequestHandler):
    """Says nothing of requests. Each connection has one: no idle one keeps the others waiting."""

    def log(self, *_):
        pass


def user(name, actions):
    """An access key of a new user who may do this in the bucket."""
    iam = iam_backends[ACCOUNT]["aws"]
    iam.create_user(region_name="us-east-1", user_name=name)
    resources = [f"arn:aws:s3:::{BUCKET}", f"arn:aws:s3:::{BUCKET}/*"]
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": actions, "Resource": resources}]}
    iam.put_user_policy(name, "own", json.dumps(policy))
    return iam.create_access_key(name)


def main():
    s3_backends[ACCOUNT]["aws"].create_bucket(BUCKET, "us-east-1")
    writer, reader = user("writer", ["s3:*"]), user("reader", ["s3:GetObject", "s3:ListBucket"])
    # From the first request on, all have to be signed.
    settings.INITIAL_NO_AUTH_ACTION_COUNT = 0
    application = DomainDispatcherApplication(create_backend_app)
    server = make_server("127.0.0.1", 0, application, threaded=False, request_handler=Quiet)
    threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
    print(f"AWS_ENDPOINT_URL=http://127.0.0.1:{server.server_port}")
    print("AWS_ALLOW_HTTP=true")
    print("AWS_REGION=us-east-1")
    for who, key in (("", writer), ("READER_", reader)):
        print(f"{who}AWS_ACCESS_KEY_ID={key.access_key_id}")
        print(f"{who}AWS_SECRET_ACCESS_KEY={key.secret_access_key}")
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
