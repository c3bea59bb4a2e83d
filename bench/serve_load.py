"""Load on `clearshot serve`: clients that upload, restore, poll, download and take away, for some seconds, against 127.0.0.1 only.

    python bench/serve_load.py PROGRAM [--clients 50] [--seconds 120] [--side 64]

Starts a server of its own in a temporary folder. Refusals that are documented (503 with Retry-After) are counted and waited out; every other
status that is not a success, every job that fails and every job that is lost is an error. Prints one JSON line.
"""

import argparse
import http.client
import json
import random
import struct
import subprocess
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path


def npy(side, seed):
    draw = random.Random(seed)
    values = [100 + draw.randrange(40) for _ in range(side * side)]
    head = f"{{'descr': '<u2', 'fortran_order': False, 'shape': ({side}, {side}), }}"
    return b"\x93NUMPY\x01\x00\x76\x00" + f"{head:<117}\n".encode() + struct.pack(f"<{len(values)}H", *values)


class Client(threading.Thread):
    def __init__(self, number, port, side, end):
        super().__init__()
        self.image, self.port, self.end = npy(side, number), port, end
        self.statuses, self.errors, self.jobs, self.waits = Counter(), [], 0, []

    def ask(self, method, target, body=None):
        while True:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
            connection.request(method, target, body=body)
            reply = connection.getresponse()
            data = reply.read()
            connection.close()
            self.statuses[reply.status] += 1
            if reply.status == 503 and reply.getheader("Retry-After"):
                time.sleep(1 + random.random())
                continue
            if reply.status >= 300:
                raise RuntimeError(f"{method} {target}: {reply.status} {data[:200]}")
            return data

    def once(self):
        began = time.time()
        file = json.loads(self.ask("POST", "/api/files?name=a.npy", self.image))["file"]
        self.ask("GET", f"/api/tile?file={file}")
        job = json.loads(self.ask("POST", "/api/jobs", json.dumps({"file": file, "settings": {"method": "bm3d", "gain": 1, "read_noise": 2}})))["id"]
        while (now := json.loads(self.ask("GET", f"/api/jobs/{job}")))["state"] in ("queued", "running"):
            time.sleep(0.25)
        if now["state"] != "done":
            raise RuntimeError(f"job {job}: {now['state']} {now['error']}")
        if len(self.ask("GET", f"/api/download?file={now['made'][0]['file']}")) != len(self.image):
            raise RuntimeError("the result has another size")
        self.ask("DELETE", f"/api/jobs/{job}")
        self.ask("DELETE", f"/api/files?file={file}")
        self.jobs += 1
        self.waits.append(time.time() - began)

    def run(self):
        while time.time() < self.end:
            try:
                self.once()
            except Exception as e:  # counted, and the others go on
                self.errors.append(str(e))
                time.sleep(1)


def memory(pid):
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return {"peak_mb": int(fields["VmHWM"].split()[0]) // 1024, "now_mb": int(fields["VmRSS"].split()[0]) // 1024}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--side", type=int, default=64)
    given = parser.parse_args()
    if not (1 <= given.clients <= 100 and 1 <= given.seconds <= 900):
        parser.error("up to 100 clients and 900 seconds")
    program = str(Path(given.program).resolve())
    with tempfile.TemporaryDirectory() as folder:
        server = subprocess.Popen([program, "serve", "--address", "127.0.0.1:0"], cwd=folder, stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().split()[1].rstrip("/").rsplit(":", 1)[1])
            end = time.time() + given.seconds
            clients = [Client(n, port, given.side, end) for n in range(given.clients)]
            for client in clients:
                client.start()
            time.sleep(given.seconds / 2)
            middle = memory(server.pid)
            for client in clients:
                client.join()
            waits = sorted(w for c in clients for w in c.waits)
            errors = [e for c in clients for e in c.errors]
            left = len(list((Path(folder) / "clearshot-serve" / "jobs").iterdir()))
            print(json.dumps({
                "clients": given.clients, "seconds": given.seconds, "side": given.side, "jobs": sum(c.jobs for c in clients),
                "answers": dict(sum((c.statuses for c in clients), Counter())), "errors": len(errors), "first_errors": errors[:3],
                "jobs_left": left, "median_s": round(waits[len(waits) // 2], 2) if waits else None, "slowest_s": round(waits[-1], 2) if waits else None,
                "middle": middle, "end": memory(server.pid),
            }))
        finally:
            server.kill()
            server.wait()


main()
