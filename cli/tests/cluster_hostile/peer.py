"""A peer that does what no client does. Says what the controller did, or what it should have done, and ends with 1."""
import hashlib, json, socket, ssl, sys, threading, time

host, port = sys.argv[1].rsplit(":", 1)
authority, token, part = sys.argv[2], sys.argv[3], sys.argv[4]
context = None
if authority != "-":
    context = ssl.create_default_context(cafile=authority)


def connect(source="127.0.0.1"):
    plain = socket.create_connection((host, int(port)), timeout=50, source_address=(source, 0))
    return context.wrap_socket(plain, server_hostname="tidemill") if context else plain


def until_end(line):
    """What comes until the other side ends the connection."""
    heard = b""
    try:
        while True:
            some = line.recv(65536)
            if not some:
                return heard
            heard += some
    except (ConnectionError, ssl.SSLError, TimeoutError) as error:
        assert not isinstance(error, TimeoutError), "the connection stays"
        return heard


def answer(line):
    """One answer: status, head, body."""
    heard = b""
    while b"\r\n\r\n" not in heard:
        some = line.recv(65536)
        if not some:
            raise ConnectionError("it ends within the head", heard)
        heard += some
    head, body = heard.split(b"\r\n\r\n", 1)
    fields = {}
    for field in head.split(b"\r\n")[1:]:
        name, value = field.split(b":", 1)
        fields.setdefault(name.strip().lower().decode(), value.strip().decode())
    length = int(fields.get("content-length", "0"))
    while len(body) < length:
        some = line.recv(65536)
        assert some, "it ends within the body"
        body += some
    return int(head.split()[1]), fields, body


def ask(method, path, fields=None, body=b"", source="127.0.0.1", shown=token):
    fields = dict(fields or {})
    if shown:
        fields.setdefault("Authorization", "Bearer " + shown)
    fields.setdefault("Content-Length", str(len(body)))
    text = f"{method} {path} HTTP/1.1\r\nHost: x\r\n" + "".join(f"{n}: {v}\r\n" for n, v in fields.items()) + "\r\n"
    with connect(source) as line:
        try:
            line.sendall(text.encode() + body)
        except (ConnectionError, ssl.SSLError):
            pass  # it has heard enough, and says why
        return answer(line)


def is_good():
    status, _, body = ask("GET", "/v1/me")
    assert status == 200 and json.loads(body)["role"] == "admin", (status, body)


def heads():
    good = f"GET /v1/me HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
    for name, request, wanted in [
        ("a long field", good + "X: " + "y" * 100_000 + "\r\n\r\n", (431,)),
        ("many fields", good + "".join(f"X{n}: y\r\n" for n in range(100)) + "\r\n", (431,)),
        ("a long path", "GET /v1/" + "x" * 100_000 + " HTTP/1.1\r\nHost: x\r\n\r\n", (414, 431)),
        ("no HTTP", "\x16\x03\x01 hello\r\n\r\n", (400,)),
        ("two lengths", good + "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", (400,)),
        ("no number as a length", good + "Content-Length: -1\r\n\r\n", (400,)),
        ("a path with zeros", "GET /v1/runs/a%00b HTTP/1.1\r\nHost: x\r\n\r\n", (400, 401, 404)),
        ("a way out", "GET /page/../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n", (404,)),
        ("a hidden way out", "GET /v1/runs/..%2f..%2fetc HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n\r\n", (404,)),
        ("a file outside", "GET /v1/blobs/..%2fadmin.token HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + token + "\r\n\r\n", (400, 404)),
        ("a method of nobody", "BREW /v1/me HTTP/1.1\r\nHost: x\r\n\r\n", (405,)),
        ("a length and chunks", "POST /v1/runs HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/me HTTP/1.1\r\nHost: x\r\n\r\n", None),
    ]:
        with connect() as line:
            try:
                line.sendall(request.encode("latin-1"))
            except (ConnectionError, ssl.SSLError):
                pass
            if wanted is None:
                # What follows is never taken for a request of somebody: one answer at most says 200.
                line.settimeout(3)
                heard = b""
                try:
                    while some := line.recv(65536):
                        heard += some
                except (TimeoutError, ConnectionError, ssl.SSLError):
                    pass
                assert b" 200 " not in heard, (name, heard)
                continue
            status, _, _ = answer(line)
            assert status in wanted, (name, status)
        is_good()
    print("heads: refused")


def bodies():
    long = b"x" * 200_000
    # Of a stranger not even the length is believed.
    status, fields, _ = ask("POST", "/v1/join", {"Content-Length": str(1 << 20)}, shown=None)
    assert status == 413 and fields.get("connection") == "close", (status, fields)
    status, _, _ = ask("POST", "/v1/runs", {"Content-Length": str(1 << 20)}, shown="tmp_" + "0" * 48)
    assert status == 413, status
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(long), long) for _ in range(3)) + b"0\r\n\r\n"
    with connect() as line:
        head = b"POST /v1/join HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
        try:
            line.sendall(head + chunks)
        except (ConnectionError, ssl.SSLError):
            pass
        status, _, _ = answer(line)
        assert status in (400, 413), status
    # Who is known may say more, but not anything: 17 MiB of JSON are too much.
    # The end of the connection may overtake the answer.
    try:
        status, _, _ = ask("POST", "/v1/runs", {"Content-Type": "application/json"}, b" " * (17 << 20))
        assert status == 413, status
    except (ConnectionError, ssl.SSLError):
        pass
    is_good()
    print("bodies: refused")


def slow():
    """Three who are slow in three ways, all of whom are left; others are served meanwhile."""
    ended = []

    def drip(line, first, drops):
        line.sendall(first)
        try:
            for _ in range(60):
                time.sleep(1)
                line.sendall(drops)
        except (ConnectionError, ssl.SSLError, OSError):
            pass

    def one(name, first, drops):
        with connect() as line:
            thread = threading.Thread(target=drip, args=(line, first, drops), daemon=True)
            if drops:
                thread.start()
            elif first:
                line.sendall(first)
            until_end(line)
            ended.append(name)

    head = f"POST /v1/runs HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Type: application/json\r\n"
    ways = [
        ("silent", b"", b""),
        ("half a head", b"GET / HTTP/1.1\r\n", b""),
        ("a head by drops", b"GET / HTTP/1.1\r\n", b"X: y\r\n"),
        ("half a body", (head + "Content-Length: 1000\r\n\r\n{").encode(), b""),
        ("a body by drops", (head + "Content-Length: 100000\r\n\r\n").encode(), b" "),
    ]
    threads = [threading.Thread(target=one, args=way, daemon=True) for way in ways]
    for thread in threads:
        thread.start()
    rounds = 0
    while any(thread.is_alive() for thread in threads) and rounds < 55:
        is_good()
        rounds += 1
        time.sleep(1)
    assert sorted(ended) == sorted(name for name, _, _ in ways), ended
    assert rounds > 5, "they were left at once: nothing was slow"
    print("slow: left,", rounds, "others served meanwhile")


def many():
    """More connections than the controller may have files: the oldest of them go, and who asks is served."""
    count = int(sys.argv[5])
    lines = [connect() for _ in range(count)]
    is_good()
    gone = 0
    for line in lines:
        line.settimeout(0.01)
        try:
            gone += line.recv(1) == b""
        except (ConnectionError, ssl.SSLEOFError):
            gone += 1
        except (TimeoutError, ssl.SSLWantReadError, OSError):
            pass
    assert gone >= count // 3, (gone, "of", count)
    is_good()
    print("many:", gone, "of", count, "made room")


def pages():
    status, fields, body = ask("GET", "/", shown=None)
    policy = fields["content-security-policy"]
    assert status == 200 and b"<script" in body
    for word in ("default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'"):
        assert word in policy, policy
    assert "unsafe" not in policy and "*" not in policy, policy
    for method, path in [("GET", "/"), ("GET", "/page/main.js"), ("GET", "/v1/me"), ("GET", "/v1/runs"), ("GET", "/none"), ("GET", "/metrics")]:
        status, fields, _ = ask(method, path)
        for name, value in [("x-content-type-options", "nosniff"), ("x-frame-options", "DENY"), ("referrer-policy", "no-referrer"),
                            ("cross-origin-resource-policy", "same-origin"), ("cross-origin-opener-policy", "same-origin")]:
            assert fields.get(name) == value, (path, name, fields)
        assert "content-security-policy" in fields, path
        if path.startswith("/v1"):
            assert fields.get("cache-control") == "no-store", (path, fields)
    # There is no session that a browser would show by itself, and no permission for other pages.
    others = {"Origin": "https://elsewhere.example", "Access-Control-Request-Method": "POST",
              "Access-Control-Request-Headers": "authorization,content-type"}
    for method, path, more in [("OPTIONS", "/v1/runs", others), ("GET", "/v1/me", others), ("POST", "/v1/workers/edge/drain", others),
                               ("GET", "/", {})]:
        _, fields, _ = ask(method, path, more)
        assert "set-cookie" not in fields and not any(name.startswith("access-control") for name in fields), fields
    for site in ("cross-site", "same-site"):
        status, _, _ = ask("POST", "/v1/workers/edge/drain", {"Sec-Fetch-Site": site})
        assert status == 403, status
    status, _, _ = ask("GET", "/v1/me", {"Sec-Fetch-Site": "same-origin"})
    assert status == 200, status
    # A form of another page has no JSON.
    status, _, _ = ask("POST", "/v1/join-tokens", {"Content-Type": "text/plain"}, b"{}")
    assert status == 415, status
    print("pages: of the controller only")


def attempts():
    """Wrong tokens, one after the other, from an address of their own; another address is not held up."""
    counts = {}
    wrong = "tmp_" + "0" * 48

    def until_over():
        for n in range(2_000):
            shown = [wrong, "nonsense", wrong.replace("p", "j")][n % 3]
            status, fields, body = ask("GET", "/v1/me", source="127.0.0.9", shown=shown)
            counts[status] = counts.get(status, 0) + 1
            assert status in (400, 401, 429) and wrong.encode() not in body, (status, body)
            if status == 429:
                assert int(fields["retry-after"]) >= 1, fields
                return
        raise AssertionError(("nobody is held up", counts))

    def is_held_up(method, path, fields=None, body=b"", shown=token):
        """Right after the last one; a machine that is slow may have been forgiven meanwhile."""
        for _ in range(50):
            until_over()
            if ask(method, path, fields, body, source="127.0.0.9", shown=shown)[0] == 429:
                return True
        return False

    # Also a token that is right is not looked at there; from elsewhere it is.
    assert is_held_up("GET", "/v1/me")
    assert is_held_up("POST", "/v1/join", {"Content-Type": "application/json"}, b"{}", shown=None)
    assert counts.get(401, 0) + counts.get(400, 0) >= 30, counts
    is_good()
    # What needs no token is there for everybody.
    status, _, _ = ask("GET", "/", source="127.0.0.9", shown=None)
    assert status == 200, status
    print("attempts:", json.dumps({str(k): v for k, v in counts.items()}))


def submissions():
    """Runs that would have the controller open, write or tell what is its own: `FOLDER` is its folder."""
    folder = sys.argv[5]
    outside = "is not one of the sent files"
    variable = "is not set"

    def submitted(name, text, workflow="workflow.yaml", path="workflow.yaml"):
        bytes = text.encode()
        digest = hashlib.sha256(bytes).hexdigest()
        status, _, body = ask("PUT", "/v1/blobs/" + digest, body=bytes)
        assert status == 200, (status, body)
        files = [{"path": path, "digest": digest, "bytes": len(bytes)}]
        body = json.dumps({"name": name, "bundle": {"workflow": workflow, "files": files}}).encode()
        status, _, body = ask("POST", "/v1/runs", {"Content-Type": "application/json"}, body)
        assert token.encode() not in body, (name, body)
        return status, body.decode()

    def text(path="/no/such/rows.csv", more="", options=""):
        return (f"version: 1\nname: hostile\nsources:\n  - {{id: rows, kind: csv, options: {{path: '{path}', columns: {{k: text}}}}}}\n"
                f"sinks:\n  - {{id: out, kind: jsonl, input: rows, options: {{path: out.jsonl{options}}}}}\n{more}")

    def model(path):
        return f"operators: [{{id: see, kind: ml, input: rows, variants: ['{path}']}}]\n"

    def letters(path):
        return f"run: {{dead_letters: '{path}'}}\n"

    refused = 0
    for workflow in ["../../../admin.token", folder + "/admin.token", "", "other.yaml"]:
        status, body = submitted("workflow", text(), workflow)
        assert status == 422 and outside in body, (workflow, status, body)
        refused += 1
    status, body = submitted("file", text(), "../../../workflow.yaml", "../../../workflow.yaml")
    assert status == 422, (status, body)
    for what, words in [
        (text("../../../admin.token"), outside),
        (text("../planning/../../../admin.token"), outside),
        (text(more=model("../../../admin.token")), outside),
        (text(more=model(folder + "/admin.token")), outside),
        (text(options=", over: ../../../admin.token"), outside),
        (text(more=letters("../../../identities/authority.pem")), "without `..`"),
        (text(more=letters(folder + "/identities/authority.pem")), "without `..`"),
        (text(more=letters("out/../../../../admin.token")), "without `..`"),
        (text("${PATH}"), variable),
        (text(options=", overwrite: '${PATH}'"), variable),
    ]:
        status, body = submitted("refused", what)
        assert status == 422 and words in body, (what, status, body)
        refused += 1
    # What lies on workers is not looked at, and what the environment of the controller has is not there.
    for name, what in [("device", text("/dev/zero")), ("pipe", text(folder + "/pipe")), ("default", text("/${PATH:-none}.csv"))]:
        status, body = submitted(name, what)
        assert status == 200, (name, status, body)
    is_good()
    print("submissions:", refused, "refused")


{"heads": heads, "bodies": bodies, "slow": slow, "many": many, "pages": pages, "attempts": attempts, "submissions": submissions}[part]()
