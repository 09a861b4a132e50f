//! Inputs that claim, repeat or nest more than anybody needs, too long to be kept as files: each is a
//! beginning, what is repeated, how often, and an end. Replayed with the corpora.

pub(super) struct Bomb {
    pub(super) target: &'static str,
    pub(super) before: &'static [u8],
    pub(super) repeated: &'static [u8],
    pub(super) times: usize,
    pub(super) after: &'static [u8],
}

impl Bomb {
    pub(super) fn input(&self) -> Vec<u8> {
        [self.before, &self.repeated.repeat(self.times), self.after].concat()
    }
}

const fn bomb(
    target: &'static str,
    before: &'static [u8],
    repeated: &'static [u8],
    times: usize,
    after: &'static [u8],
) -> Bomb {
    Bomb { target, before, repeated, times, after }
}

const RULE: &[u8] = b"[[rule]]\nname = 'a'\nkey = ['ip']\nlimits = ['1/s']\n";

pub(super) const BOMBS: [Bomb; 44] = [
    // Hops, all of them trusted or none a hop at all; quotes that do not end.
    bomb("identity", b"\0", b"10.0.0.1,", 10_000, b""),
    bomb("identity", b"\0", b"10.0.0.1\n", 10_000, b""),
    bomb("identity", b"\0", b",", 100_000, b""),
    bomb("identity", b"\x01", b"for=10.0.0.1,", 10_000, b""),
    bomb("identity", b"\x01for=10.0.0.1", b";by=a", 10_000, b""),
    bomb("identity", b"\x01for=\"", b"\\\"", 10_000, b""),
    bomb("path", b"", b"/..", 100_000, b""),
    bomb("path", b"", b"/a", 100_000, b""),
    bomb("path", b"/", b"%", 100_000, b""),
    bomb("path", b"", b"a://", 10_000, b""),
    bomb("quota", b"", b"9", 100_000, b"/second"),
    bomb("quota", b"1/", b"0", 100_000, b"1s"),
    bomb("quota", b"5/month\nfixed-window\n\n\n\n", b"A/", 50_000, b""),
    bomb("policy", b"a = ", b"[", 10_000, b""),
    bomb("policy", b"a = ", b"{a=", 10_000, b""),
    bomb("policy", b"", b"a.", 10_000, b"a = 1"),
    bomb("policy", b"[", b"a.", 10_000, b"a]"),
    // Each dot a table within another, or a mistake of its own.
    bomb("policy", b"", b"b....................................................................... = 1\n", 100, b""),
    bomb("policy", b"a = {", b".", 10_000, b""),
    bomb("settings", b"[server]\n", b"b....................................................................... = 1\n", 100, b""),
    bomb("policy", b"", b"b....................................................................... = 1\n", 10_000, b""),
    bomb("settings", b"[server]\n", b"b....................................................................... = 1\n", 10_000, b""),
    bomb("policy", b"a = [", b"{a.a=1},         ", 20_000, b"]"),
    bomb("policy", b"a = [", b"{a={a=1}},", 20_000, b"]"),
    bomb("policy", b"", b"=\n", 100_000, b""),
    bomb("policy", RULE, b"[[rule]]\n", 2_000, b""),
    bomb("policy", b"[[rule]]\nlimits = [", b"'1/s',", 10_000, b"]"),
    bomb("policy", b"rule = [", b"{},", 2_000, b"]"),
    bomb("settings", b"[server]\na = ", b"[", 10_000, b""),
    bomb("settings", b"[server", b".a", 10_000, b"]\nb = 1"),
    bomb("settings", b"server", b".a", 10_000, b" = 1"),
    bomb("settings", b"[server]\ntrusted_proxies = [", b"'::/0',", 10_000, b"]"),
    bomb("replies", b"", b"*1\r\n", 10_000, b":1\r\n"),
    bomb("replies", b"", b"*99999999\r\n", 100, b""),
    bomb("replies", b"", b"*9999\r\n:1\r\n", 99, b""),
    bomb("http", b"{\"attributes\":", b"{\"a\":", 10_000, b""),
    bomb("http", b"", b"[", 100_000, b""),
    bomb("http", b"[", b"{},", 100_000, b"{}]"),
    bomb("http", b"{\"attributes\":{\"a\":\"", b"\\u0000", 20_000, b"\"}}"),
    bomb("http", b"{\"key\":\"a\",\"limit\":{\"quota\":\"", b"9", 100_000, b"\"}}"),
    bomb("explain", b"rule=a", b"&attr.%61=", 5_000, b""),
    bomb("import", b"domain: a\ndescriptors:\n", b"- ", 10_000, b""),
    bomb("import", b"domain: a\ndescriptors: ", b"[", 10_000, b""),
    // Each level is copied with all within it.
    bomb("import", b"domain: a\ndescriptors: ", b"&a [", 100, b"1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"),
];
