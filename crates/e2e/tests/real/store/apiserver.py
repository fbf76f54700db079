"""What kube-apiserver does with its store: thousands of objects, lists in pages, watches.

Usage: apiserver.py API-SERVER TOKEN STORE. Says "watching" when the store may be restarted, and ends
with a line that begins with "whole".
"""

import base64
import http.client
import json
import ssl
import sys
import threading
import time
import urllib.parse
import urllib.request

SERVER, TOKEN, STORE = sys.argv[1:]
OBJECTS, CHANGES, PATIENCE = 5000, 200, 240
MAPS = "/api/v1/namespaces/default/configmaps"
TRUSTING = ssl._create_unverified_context()
HEADERS = {"Authorization": "Bearer " + TOKEN, "Content-Type": "application/json"}


def connection():
    return http.client.HTTPSConnection(SERVER, context=TRUSTING, timeout=60)


def call(at, verb, path, body=None):
    text = None if body is None else json.dumps(body)
    at.request(verb, path, text, HEADERS)
    answer = at.getresponse()
    read = answer.read()
    return answer.status, json.loads(read) if read[:1] == b"{" else read.decode()


def patiently(what, attempt):
    """Repeats until it gives something, as the programs of Kubernetes do."""
    end, why = time.monotonic() + PATIENCE, None
    while time.monotonic() < end:
        try:
            done = attempt()
            if done is not None:
                return done
        except (OSError, http.client.HTTPException) as error:
            why = error
        time.sleep(0.05)
    sys.exit(f"{what} did not come: {why}")


def ready():
    status, _ = call(connection(), "GET", "/readyz")
    found, _ = call(connection(), "GET", "/api/v1/namespaces/default")
    return True if (status, found) == (200, 200) else None


def make(first, last):
    at = connection()
    for number in range(first, last):
        body = {"metadata": {"name": f"map-{number:05}"}, "data": {"k": "x" * 200}}
        status, answer = call(at, "POST", MAPS, body)
        assert status == 201, answer


def change(number, value):
    def attempt():
        body = {"data": {"k": value}}
        at = connection()
        headers = {**HEADERS, "Content-Type": "application/merge-patch+json"}
        at.request("PATCH", f"{MAPS}/map-{number:05}", json.dumps(body), headers)
        answer = at.getresponse()
        read = answer.read()
        return json.loads(read)["metadata"]["resourceVersion"] if answer.status == 200 else None

    return patiently(f"a change of map-{number:05}", attempt)


def pages():
    """Everything in pages of one moment, while objects change between the pages."""
    at, names, version, more = connection(), [], None, ""
    while True:
        query = urllib.parse.urlencode({"limit": 500, **({"continue": more} if more else {})})
        status, answer = call(at, "GET", f"{MAPS}?{query}")
        assert status == 200, answer
        meta = answer["metadata"]
        assert version in (None, meta["resourceVersion"]), "pages of different moments"
        version = meta["resourceVersion"]
        for item in answer["items"]:
            if item["metadata"]["name"].startswith("map-"):
                names.append(item["metadata"]["name"])
                assert item["data"]["k"] == "x" * 200, "a later change in an earlier moment"
        more = meta.get("continue", "")
        if not more:
            return names, version
        change(OBJECTS - 1, f"page {len(names)}") if len(names) == 500 else None


def compact():
    """Forgets all history of the store, as its own compaction would in an hour."""
    def post(path, body):
        request = urllib.request.Request(STORE + path, json.dumps(body).encode())
        return json.load(urllib.request.urlopen(request, timeout=60))

    key = base64.b64encode(b"/registry/").decode()
    end = base64.b64encode(b"/registry0").decode()
    found = post("/v3/kv/range", {"key": key, "range_end": end, "count_only": True})
    revision = found["header"]["revision"]
    post("/v3/kv/compaction", {"revision": revision, "physical": True})
    return int(revision), int(found["count"])


class Watch(threading.Thread):
    """Events from a version on, across as many connections as it takes."""

    def __init__(self, version):
        super().__init__(daemon=True)
        self.version, self.seen, self.broken = version, [], None

    def run(self):
        while True:
            try:
                self.follow()
            except (OSError, http.client.HTTPException):
                pass
            if self.broken:
                return
            time.sleep(0.05)

    def follow(self):
        at = connection()
        at.request("GET", f"{MAPS}?watch=1&resourceVersion={self.version}", headers=HEADERS)
        answer = at.getresponse()
        if answer.status == 410:
            self.broken = answer.read()
        if answer.status != 200:
            return
        for line in answer:
            event = json.loads(line)
            if event["type"] == "ERROR":
                self.broken = event
                return
            self.version = event["object"]["metadata"]["resourceVersion"]
            if event["object"]["metadata"]["name"].startswith("map-"):
                self.seen.append(self.version)


def main():
    patiently("the API server", ready)
    print("ready", flush=True)
    for first in range(0, OBJECTS, 1000):
        parts = [(first + part * 250, first + (part + 1) * 250) for part in range(4)]
        makers = [threading.Thread(target=make, args=part) for part in parts]
        [maker.start() for maker in makers]
        [maker.join() for maker in makers]
        print(f"made {first + 1000}", flush=True)
    names, version = pages()
    assert names == [f"map-{number:05}" for number in range(OBJECTS)], len(names)
    print(f"listed {len(names)} objects at {version}", flush=True)
    watch = Watch(version)
    watch.start()
    # The object that was changed between pages comes first.
    patiently("the first event", lambda: watch.seen or None)
    wanted = list(watch.seen)
    wanted += [change(number, "before") for number in range(CHANGES)]
    revision, count = compact()
    assert count >= OBJECTS, count
    wanted += [change(number, "compacted") for number in range(CHANGES)]
    print(f"watching from {version}, compacted to {revision}", flush=True)
    wanted += [change(number, f"round {number}") for number in range(CHANGES)]
    patiently("the last event", lambda: True if watch.broken or watch.seen[-1:] == wanted[-1:] else None)
    assert not watch.broken, watch.broken
    assert watch.seen == wanted, f"{len(watch.seen)} events for {len(wanted)} changes"
    print(f"whole: {len(names)} objects, {len(wanted)} events", flush=True)


main()
