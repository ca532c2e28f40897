"""Values of the fuzzer: texts, JSON, headers and content types that services trip over."""

SURROGATE = b"\xed\xa0\x80"
BOUNDARY = "xFuZzx"
TEXTS: tuple[str, ...] = (
    *("", " ", "\0", "\x00a", "a\0b", "\ud800", "a\udfffb", "\ud800{prompt}=", "\udc00\ud800"),
    *("\u202eabc", "\u200f\u05d0", "\u0627\u0644", "\ufeff", "\uffff", "\U0010ffff", "e\u0301"),
    *("%s%n%x", "{0.__class__}", "{prompt}{answer}", "${HOME}", "$(id)", "%00", "%ff", "{", "}}"),
    *("../../../etc/passwd", "..", ".", "/etc/passwd", "a/../../b", "\\..\\..", "file:///etc"),
    *("a\r\nX-Injected: 1", "\n", "\r", "\x1b[31mred", "\x7f", "<script>", "'; --", '"', "`id`"),
    *(
        "NaN",
        "Infinity",
        "-1",
        "1e400",
        "9" * 5000,
        "0x10",
        "٣",
        "true",
        "null",
        "None",
        "[]",
        "{}",
    ),
    *("a" * 300, "a" * 5000, "é" * 70_000, "[::1", "[", "://", "run:", "run:\0", "run:../..", "*"),
    *("0-0", "0-99999999999999999999", "-", "1-", "1." + "0" * 400 + "-a", "+", "$", ">"),
)
BIG = ("a" * (1 << 20), "\u202e" * (1 << 19), "[" * (1 << 20))
TOKENS: tuple[bytes, ...] = (
    *(
        b"null",
        b"true",
        b"false",
        b"0",
        b"-1",
        b"1",
        b"-0.0",
        b"0.5",
        b"1e400",
        b"-1e400",
        b"1e-400",
    ),
    *(
        b"NaN",
        b"Infinity",
        b"-Infinity",
        b"9" * 30,
        b"-" + b"9" * 30,
        b"9" * 5000,
        b"1" * 400 + b".5",
    ),
    *(b"9223372036854775807", b"9223372036854775808", b"2147483648", b"1.7976931348623157e308"),
    *(b"[]", b"{}", b'[""]', b"[null]", b"[[]]", b'{"":null}', b'{"a":1,"a":2}', b'{"type":"x"}'),
    *(b'{"type":null}', b'{"0":1}', b'{"-1":{}}', b'{"__class__":1}', b"[" * 60 + b"]" * 60),
    *(b"[" * 150 + b"]" * 150, b"[" * 190 + b"]" * 190, b'{"a":' * 190 + b"1" + b"}" * 190),
    *(
        b"[" * 300 + b"]" * 300,
        b"[" * 100_000,
        b'"\\ud800"',
        b'"\\udc00\\ud800"',
        b'"' + SURROGATE + b'"',
    ),
    *(
        b'{"\\ud800":1}',
        b'"\\u0000"',
        b"01",
        b"+1",
        b"'a'",
        b"a",
        b"",
        b'"\xff"',
        b"[" + b"1," * 9999 + b"1]",
    ),
)
HEADERS: tuple[tuple[bytes, bytes], ...] = (
    *(
        (b"Host", value)
        for value in (b"[::1", b"", b"a b", b"\xff", b"x" * 9000, b"a:b:c", b"[]:1")
    ),
    *((b"Origin", value) for value in (b"http://[::1", b"null", b"\xff", b"http://a", b"[")),
    *(
        (b"Cookie", value)
        for value in (b"headrace-key=\xff", b"=;=", b'a="', b"headrace-key=" + b"x" * 5000)
    ),
    *(
        (b"Authorization", value)
        for value in (b"Bearer", b"Bearer \xff", b"Basic x", b"bearer " + b"y" * 5000)
    ),
    *((b"If-None-Match", value) for value in (b"*", b"\xff", b'W/"a"', b'"' * 1000)),
    *(
        (b"Range", value)
        for value in (
            b"bytes=5-1",
            b"bytes=-",
            b"bytes=" + b"9" * 5000 + b"-",
            b"x=1",
            b"bytes=0-0,1-1",
        )
    ),
    *(
        (b"Last-Event-ID", value)
        for value in (b"0", b"x", b"9" * 5000, b"9" * 30 + b"-1", b"\xb2", b"")
    ),
    *((b"Expect", value) for value in (b"100-continue", b"nonsense")),
    *((b"Content-Encoding", value) for value in (b"gzip", b"zstd", b"\xff")),
    *((b"X-Forwarded-For", value) for value in (b"\xff", b"[", b"a" * 5000)),
    *((b"Accept", value) for value in (b"\xff", b"*/*;q=NaN", b"text/event-stream")),
)
CONTENT_TYPES: tuple[bytes, ...] = (
    *(
        b"",
        b"text/plain",
        b"application/json; charset=utf-16",
        b"application/x+json",
        b"application/xml",
    ),
    *(
        b"application/x-www-form-urlencoded",
        b"multipart/form-data",
        b"\xff",
        b"application/",
        b"json",
    ),
    *(
        b"multipart/form-data; boundary=",
        b"multipart/form-data; boundary=\xff",
        b"multipart/x; boundary=a",
    ),
    *(
        f"multipart/form-data; boundary={BOUNDARY}; charset={name}".encode()
        for name in (
            "utf-7",
            "utf-16",
            "idna",
            "punycode",
            "unicode_escape",
            "raw_unicode_escape",
            "rot13",
            "nul\0",
        )
    ),
)
