#!/usr/bin/env python3
"""Compares what clearshot-image reads from and writes to S3 with what zarr-python and s3fs do there.

    python object_store.py --tool target/release/examples/dump_image [--venv DIR]

The server is moto's, made to check every request's signature against keys and policies. Runs in an environment of its own:
where the packages are missing it makes one in --venv and installs them, and says so and ends where that cannot be.
"""
import argparse
import datetime
import functools
import http.server
import json
import logging
import os
import pathlib
import ssl
import subprocess
import sys
import tempfile
import threading

import environment

PACKAGES = ["numpy", "zarr>=3", "s3fs", "moto[server]"]
MODULES = ["moto", "numpy", "s3fs", "zarr"]

parser = argparse.ArgumentParser()
parser.add_argument("--tool", required=True)
parser.add_argument("--venv", default="target/object-store-venv")
args = parser.parse_args()
environment.enter(args.venv, PACKAGES, MODULES)

import boto3  # noqa: E402
import numpy as np  # noqa: E402
import requests  # noqa: E402
import s3fs  # noqa: E402
import zarr  # noqa: E402
from moto.server import ThreadedMotoServer  # noqa: E402
from zarr.codecs import BloscCodec, ZstdCodec  # noqa: E402

logging.getLogger("werkzeug").setLevel(logging.ERROR)
WORK = pathlib.Path(tempfile.mkdtemp(prefix="object_store"))
failures, checked = [], 0


def start():
    """A server with a bucket, and a user whose requests must be signed."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://127.0.0.1:{port}"
    given = dict(endpoint_url=url, region_name="eu-west-2", aws_access_key_id="a", aws_secret_access_key="b")
    iam, s3 = boto3.client("iam", **given), boto3.client("s3", **given)
    s3.create_bucket(Bucket="lab", CreateBucketConfiguration={"LocationConstraint": "eu-west-2"})
    iam.create_user(UserName="anna")
    keys = iam.create_access_key(UserName="anna")["AccessKey"]
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="anna", PolicyName="all", PolicyDocument=json.dumps(policy))
    requests.post(url + "/moto-api/reset-auth", data=b"0").raise_for_status()
    return url, keys["AccessKeyId"], keys["SecretAccessKey"]


URL, KEY, SECRET = start()
ENVIRONMENT = {k: v for k, v in os.environ.items() if not k.startswith("AWS_")}
ENVIRONMENT |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_REGION": "eu-west-2",
                "AWS_ENDPOINT_URL": URL}
FILES = s3fs.S3FileSystem(key=KEY, secret=SECRET, client_kwargs={"endpoint_url": URL, "region_name": "eu-west-2"},
                          asynchronous=True)


def store(path):
    return zarr.storage.FsspecStore(FILES, path="lab/" + path)


def tool(*arguments, **variables):
    return subprocess.run([args.tool, *map(str, arguments)], capture_output=True, text=True, timeout=120,
                          env=ENVIRONMENT | variables)


def dump(address):
    out = WORK / "pixels.raw"
    done = tool(address, out)
    assert done.returncode == 0, "tool: " + done.stderr.strip()[-300:]
    info = json.loads(done.stdout)
    info["levels"] = [np.fromfile(l["file"], info["dtype"]).reshape(l["shape"]) for l in info["levels"]]
    return info


def copied(source, target):
    done = tool("--copy", source, target)
    assert done.returncode == 0, "copy: " + done.stderr.strip()[-300:]


def same(ours, theirs, what):
    theirs = np.asarray(theirs)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype, f"{what}: {ours.shape} {ours.dtype}"
    assert np.array_equal(ours, theirs), f"{what}: values differ"


def check(name, function, *arguments):
    global checked
    checked += 1
    try:
        function(*arguments)
        print(f"ok    {name}")
    except Exception as e:  # noqa: BLE001
        failures.append(name)
        print(f"FAIL  {name}: {type(e).__name__}: {e}")


AXES = [{"name": "c", "type": "channel"}, {"name": "y", "type": "space", "unit": "micrometer"},
        {"name": "x", "type": "space", "unit": "micrometer"}]


def scales(version, name):
    datasets = [{"path": str(n), "coordinateTransformations": [{"type": "scale", "scale": [1.0, s, s]}]}
                for n, s in enumerate([0.25, 0.5])]
    entry = {"name": name, "axes": AXES, "datasets": datasets}
    if version == "0.4":
        return {"multiscales": [{"version": "0.4", **entry}]}
    return {"ome": {"version": "0.5", "multiscales": [entry]}}


def made_by_python(name, version, chunks, shards=None, **codecs):
    """Two levels of two channels, written by zarr-python through s3fs."""
    data = np.random.default_rng(7).integers(0, 60000, (2, 70, 90)).astype("u2")
    levels = [data, data[:, ::2, ::2].copy()]
    root = zarr.create_group(store(name), zarr_format=2 if version == "0.4" else 3,
                             attributes=scales(version, name), overwrite=True)
    for n, level in enumerate(levels):
        more = {"chunk_key_encoding": {"name": "v2", "separator": "/"}} if version == "0.4" else {}
        root.create_array(str(n), data=level, chunks=chunks, shards=shards, **codecs, **more)
    return levels


CASES = [
    ("old.zarr", "0.4", (1, 32, 40), None, {}),
    ("new.zarr", "0.5", (1, 32, 40), None, {"compressors": ZstdCodec(level=3)}),
    ("blosc.zarr", "0.5", (1, 32, 40), None, {"compressors": BloscCodec(cname="lz4", shuffle="bitshuffle")}),
    ("shards.zarr", "0.5", (1, 16, 20), (2, 32, 40), {}),
    ("a folder/with + signs & more.zarr", "0.5", (1, 32, 40), None, {}),
]


def check_read(name, version, chunks, shards, codecs):
    levels = made_by_python(name, version, chunks, shards, **codecs)
    info = dump("s3://lab/" + name)
    assert info["axes"] == "CYX" and info["steps"][1] == [0.25, "micrometer"], info["steps"]
    for n, level in enumerate(levels):
        same(info["levels"][n], level, f"level {n}")


def check_write(name, version, *_):
    """A copy on the server, read by zarr-python: pixels, metadata, shards, and nothing besides."""
    target = "copies/" + name
    copied("s3://lab/" + name, "s3://lab/" + target)
    before, after = zarr.open_group(store(name), mode="r"), zarr.open_group(store(target), mode="r")
    assert after.metadata.zarr_format == 3
    ome = dict(after.attrs)["ome"]
    assert ome["version"] == "0.5" and ome["multiscales"][0]["axes"] == AXES, ome
    wanted = dict(before.attrs)
    wanted = wanted.get("ome", wanted)["multiscales"][0]["datasets"]
    assert ome["multiscales"][0]["datasets"] == wanted, ome
    record = dict(after.attrs)["clearshot"]
    assert record["source"] == name.split("/")[-1] and SECRET not in json.dumps(record), record
    for key in "01":
        same(after[key][...], before[key][...], key)
        assert after[key].chunks == before[key].chunks and after[key].shards == before[key].shards, key
        assert not [k for k in listed(target) if "unfinished" in k]


def listed(path):
    client = boto3.client("s3", endpoint_url=URL, region_name="eu-west-2", aws_access_key_id=KEY,
                          aws_secret_access_key=SECRET)
    pages = client.get_paginator("list_objects_v2").paginate(Bucket="lab", Prefix=path + "/")
    return [o["Key"][len(path) + 1:] for page in pages for o in page.get("Contents", [])]


def check_fresh():
    """A local image that gets a pyramid, with more objects than one page of a list has."""
    data = np.random.default_rng(8).integers(0, 4000, (300, 1100, 40)).astype("u2")
    np.save(WORK / "stack.npy", data[:, :50])
    copied(WORK / "stack.npy", "s3://lab/stack.zarr")
    wide = data[:3]
    zarr.save(WORK / "wide.zarr", wide)
    copied(WORK / "wide.zarr", "s3://lab/wide.zarr")
    assert np.array_equal(zarr.open_array(store("wide.zarr"), mode="r")[...], wide)
    group = zarr.open_group(store("stack.zarr"), mode="r")
    same(group["0"][...], data[:, :50], "stack")
    # Another in its place: nothing of the old one is left.
    copied(WORK / "wide.zarr", "s3://lab/stack.zarr")
    assert sorted(listed("stack.zarr")) == sorted(listed("wide.zarr")), listed("stack.zarr")[:5]


def check_arrays():
    """A hierarchy without OME metadata, whose arrays are listed."""
    root = zarr.create_group(store("plain.zarr"), zarr_format=3)
    data = np.arange(600, dtype="f4").reshape(20, 30)
    root.create_group("inner").create_array("b", data=data, chunks=(10, 10))
    root.create_array("a", data=data[:5], chunks=(5, 5))
    info = dump("s3://lab/plain.zarr")
    assert info["items"] == ["a", "inner/b"], info["items"]
    same(info["levels"][0], data[:5], "a")


def check_wrong_keys():
    for variables, words in [
        ({"AWS_SECRET_ACCESS_KEY": "x" * 40}, ["403", "SignatureDoesNotMatch", "AWS_SECRET_ACCESS_KEY"]),
        ({"AWS_ACCESS_KEY_ID": "AKIANOBODY"}, ["403", "InvalidAccessKeyId"]),
    ]:
        done = tool("s3://lab/new.zarr", WORK / "x", **variables)
        assert done.returncode != 0 and all(w in done.stderr for w in words), done.stderr
        assert "x" * 40 not in done.stderr and SECRET not in done.stderr, done.stderr
    done = tool("s3://nobodys/new.zarr", WORK / "x")
    assert done.returncode != 0 and "no bucket" in done.stderr, done.stderr


def certificate():
    """A certificate that this machine signed for itself, with its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
            .serial_number(1).not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
            .sign(key, hashes.SHA256()))
    pem = serialization.Encoding.PEM
    (WORK / "root.pem").write_bytes(made.public_bytes(pem))
    (WORK / "key.pem").write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8,
                                                     serialization.NoEncryption()))


def check_https():
    """Python's own server, behind a certificate of its own: it closes every connection and knows no ranges."""
    data = np.random.default_rng(9).integers(0, 60000, (40, 60)).astype("u2")
    zarr.create_array(WORK / "shards.zarr", data=data, chunks=(10, 10), shards=(20, 30))
    certificate()
    handler = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *_: None})
    server = http.server.ThreadingHTTPServer(("localhost", 0), functools.partial(handler, directory=WORK))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(WORK / "root.pem", WORK / "key.pem")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"https://localhost:{server.server_port}/shards.zarr"
    done = tool(address, WORK / "pixels.raw", AWS_CA_BUNDLE=str(WORK / "root.pem"))
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.fromfile(WORK / "pixels.raw", "u2").reshape(40, 60), data)
    done = tool(address, WORK / "pixels.raw")
    assert done.returncode != 0 and "no safe connection" in done.stderr and "AWS_CA_BUNDLE" in done.stderr, done.stderr


if __name__ == "__main__":
    for case in CASES:
        check("read " + case[0], check_read, *case)
    for case in CASES:
        check("write " + case[0], check_write, *case)
    check("pyramids and replacing", check_fresh)
    check("arrays", check_arrays)
    check("wrong keys", check_wrong_keys)
    check("https", check_https)
    print(f"{checked - len(failures)} of {checked} hold")
    sys.stdout.flush()
    # Not by the ordinary way, which waits for s3fs.
    os._exit(1 if failures or checked == 0 else 0)
