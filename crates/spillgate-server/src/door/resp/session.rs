//! What one connection has said of itself, and the commands that are about that.

use super::batch::Asking;
use super::command::{Client, Commands, Control, Credentials, ENTRIES, Entry, Hello, USER, entry};
use super::reply::{Replies, Version};
use crate::door::Token;

/// One client, from its first byte to its last.
#[derive(Debug)]
pub(super) struct Session {
    id: u64,
    name: Vec<u8>,
    /// What it must show before it may ask.
    password: Option<Token>,
    shown: bool,
    /// Whether the last command showed a wrong password.
    failed: bool,
}

/// Whether the connection goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Stay,
    Leave,
}

impl Session {
    pub(super) fn new(id: u64, password: Option<Token>) -> Session {
        Session { id, name: Vec::new(), password, shown: false, failed: false }
    }

    /// Whether this client may ask.
    pub(super) fn asking(&self) -> Asking {
        if self.shown || self.password.is_none() { Asking::Open } else { Asking::Barred }
    }

    /// Whether the last command showed a wrong password.
    pub(super) fn has_failed(&self) -> bool {
        self.failed
    }

    /// Does what a command wants, and answers it.
    pub(super) fn obey(&mut self, control: &Control<'_>, replies: &mut Replies) -> Next {
        self.failed = false;
        match control {
            Control::Auth(credentials) => match self.show(*credentials) {
                Ok(()) => replies.status("OK"),
                Err(why) => replies.error(why),
            },
            Control::Client(client) => self.client(*client, replies),
            Control::Commands(commands) => describe(commands, replies),
            Control::Echo(message) => replies.string(message),
            Control::Hello(hello) => self.hello(hello, replies),
            Control::Info => replies.string(INFO.as_bytes()),
            Control::Ping(None) => replies.status("PONG"),
            Control::Ping(Some(message)) => replies.string(message),
            Control::Select => replies.status("OK"),
            Control::Refused(why) => replies.error(why),
            Control::Reset => {
                self.name.clear();
                self.shown = false;
                replies.speak(Version::Two);
                replies.status("RESET");
            }
            Control::Quit => {
                replies.status("OK");
                return Next::Leave;
            }
            Control::Http => {
                replies.error(NOT_HTTP);
                return Next::Leave;
            }
        }
        Next::Stay
    }

    fn show(&mut self, credentials: Credentials<'_>) -> Result<(), &'static str> {
        let Some(password) = &self.password else { return Err(NO_PASSWORD) };
        // Both are looked at, so that the time taken tells nothing of either.
        let right = password.is(credentials.password);
        if right && credentials.user == USER {
            self.shown = true;
            return Ok(());
        }
        self.failed = true;
        Err(WRONG_PASSWORD)
    }

    fn client(&mut self, client: Client<'_>, replies: &mut Replies) {
        match client {
            Client::Id => replies.number(self.id),
            Client::Name if self.name.is_empty() => replies.nothing(),
            Client::Name => replies.string(&self.name),
            Client::SetName(name) => {
                self.name = name.to_vec();
                replies.status("OK");
            }
            Client::Noted => replies.status("OK"),
        }
    }

    fn hello(&mut self, hello: &Hello<'_>, replies: &mut Replies) {
        if let Some(credentials) = hello.credentials
            && let Err(why) = self.show(credentials)
        {
            return replies.error(why);
        }
        if let Some(name) = hello.name {
            self.name = name.to_vec();
        }
        if let Some(version) = hello.version {
            replies.speak(version);
        }
        replies.map(7);
        replies.string(b"server");
        replies.string(b"spillgate");
        replies.string(b"version");
        replies.string(env!("CARGO_PKG_VERSION").as_bytes());
        replies.string(b"proto");
        replies.number(match replies.version() {
            Version::Two => 2,
            Version::Three => 3,
        });
        replies.string(b"id");
        replies.number(self.id);
        replies.string(b"mode");
        replies.string(b"standalone");
        replies.string(b"role");
        replies.string(b"master");
        replies.string(b"modules");
        replies.array(0);
    }
}

fn describe(commands: &Commands<'_>, replies: &mut Replies) {
    match commands {
        Commands::Count => replies.number(ENTRIES.len() as u64),
        Commands::Docs => replies.map(0),
        Commands::All => {
            replies.array(ENTRIES.len());
            ENTRIES.iter().for_each(|entry| describe_one(entry, replies));
        }
        Commands::Named(names) => {
            replies.array(names.len());
            for name in names {
                match entry(name) {
                    Some(entry) => describe_one(entry, replies),
                    None => replies.nothing(),
                }
            }
        }
    }
}

/// Name, arity, flags, and which arguments are keys: the first, the last, the step between them.
fn describe_one(entry: &Entry, replies: &mut Replies) {
    replies.array(6);
    replies.string(entry.name.to_ascii_lowercase().as_bytes());
    replies.signed(entry.arity());
    replies.array(1);
    replies.status("fast");
    let key = u64::from(entry.has_key());
    (0..3).for_each(|_| replies.number(key));
}

/// Some clients choose by the version what they may say, and wait until nothing is loading.
const INFO: &str = concat!(
    "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nspillgate_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\n# Persistence\r\nloading:0\r\n# Replication\r\nrole:master\r\n"
);

/// To whoever asks before.
pub(super) const NOT_SHOWN: &str =
    "NOAUTH Authentication required: send AUTH with the password first";
const WRONG_PASSWORD: &str =
    "WRONGPASS invalid username-password pair: the user is default, the password the server's";
const NO_PASSWORD: &str = "ERR AUTH without a password set: leave the password out, or set \
     password_file under [server.resp]";
const NOT_HTTP: &str = "ERR this door speaks the protocol of Redis: HTTP has a door of its own";
