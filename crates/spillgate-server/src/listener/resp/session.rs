//! The state of one RESP connection (protocol version, authentication), and the commands that change it.

use super::batch::Access;
use super::command::{Control, Credentials, Hello, USER};
use super::reply::{Replies, Version};
use crate::listener::Token;

/// The session of one client.
#[derive(Debug)]
pub struct Session {
    id: u64,
    /// The password that the client must send before it may check limits.
    password: Option<Token>,
    authenticated: bool,
    /// Whether a command had a wrong password since [`Session::take_failure`].
    failed: bool,
}

/// Whether the connection stays open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    Stay,
    Leave,
}

impl Session {
    pub fn new(id: u64, password: Option<Token>) -> Session {
        Session { id, password, authenticated: false, failed: false }
    }

    /// Returns whether the client may check limits.
    pub fn access(&self) -> Access {
        if self.authenticated || self.password.is_none() { Access::Open } else { Access::Barred }
    }

    /// Returns whether a command had a wrong password since the last call of this function.
    pub fn take_failure(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }

    /// Runs a command, and writes its reply.
    pub fn run(&mut self, control: &Control<'_>, replies: &mut Replies) -> Next {
        match control {
            Control::Auth(credentials) => match self.authenticate(*credentials) {
                Ok(()) => replies.status("OK"),
                Err(why) => replies.error(why),
            },
            // Clients that show help for commands get none.
            Control::Commands => replies.array(0),
            Control::Hello(hello) => self.hello(hello, replies),
            Control::Info => replies.string(INFO.as_bytes()),
            Control::Ping(None) => replies.status("PONG"),
            Control::Ping(Some(message)) => replies.string(message),
            Control::Noted => replies.status("OK"),
            Control::Refused(why) => replies.error(why),
            Control::Quit => {
                replies.status("OK");
                return Next::Leave;
            }
        }
        Next::Stay
    }

    fn authenticate(&mut self, credentials: Credentials<'_>) -> Result<(), &'static str> {
        let Some(password) = &self.password else { return Err(NO_PASSWORD) };
        // The password is compared for every user name, so that the time of the reply does not show whether the name
        // was right.
        let right = password.is(credentials.password);
        if right && credentials.user == USER {
            self.authenticated = true;
            return Ok(());
        }
        self.failed = true;
        Err(WRONG_PASSWORD)
    }

    fn hello(&mut self, hello: &Hello<'_>, replies: &mut Replies) {
        if let Some(credentials) = hello.credentials
            && let Err(why) = self.authenticate(credentials)
        {
            return replies.error(why);
        }
        if let Some(version) = hello.version {
            replies.version = version;
        }
        replies.map(7);
        replies.string(b"server");
        replies.string(b"spillgate");
        replies.string(b"version");
        replies.string(env!("CARGO_PKG_VERSION").as_bytes());
        replies.string(b"proto");
        replies.number(match replies.version {
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

/// The reply to `INFO`. Some clients choose their commands by the version, and wait while `loading` is 1.
const INFO: &str = concat!(
    "# Server\r\nredis_version:7.0.0\r\nredis_mode:standalone\r\nspillgate_version:",
    env!("CARGO_PKG_VERSION"),
    "\r\n# Persistence\r\nloading:0\r\n# Replication\r\nrole:master\r\n"
);

/// The reply to a check before the password.
pub const NOT_AUTHENTICATED: &str =
    "NOAUTH Authentication required: send AUTH with the password first";
const WRONG_PASSWORD: &str = "WRONGPASS invalid username-password pair: the user is default, the \
     password is the one in password_file or data_token_file";
const NO_PASSWORD: &str = "ERR AUTH without a password set: leave the password out, or set \
     password_file under [server.resp]";
