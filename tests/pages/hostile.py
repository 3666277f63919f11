"""Texts that a tenant could write into a name, a prompt or an answer to break a page."""

HOSTILE = (
    "<script>alert(1)</script>",
    "</title></style></textarea><script>alert(2)</script>",
    "<img src=x onerror=alert(3)>",
    "\"'><svg onload=alert(4)>",
    "<iframe src=https://example.com/></iframe>",
    "<meta http-equiv=refresh content=0;url=https://example.com/>",
    "<base href=https://example.com/>",
    "<link rel=stylesheet href=https://example.com/x.css>",
    "<style>*{display:none}</style>",
    "<form action=https://example.com/><button autofocus>",
    "javascript:alert(5)",
    "url(https://example.com/x.png)",
    "{{ 7 * 191 }} {% raw %} ${7*191} #{7*191}",
    "&lt;b&gt; &amp;#60; &#x3c;script&#x3e;",
    "--><!-- ]]> <![CDATA[",
    "\u202eright to left\u202c",
    "bell\x07 escape\x1b[31m nul\x00 c1\x9b31m",
    "x" * 300,
    "مرحبا بالعالم, 你好, 👩\u200d💻",
)
