//! The commands of the RESP API: their names and arguments, and how a request is parsed.

use std::ops::RangeInclusive;

use spillgate::Request;

use super::answer::Answer;
use super::reply::Version;
use super::request::{self, ParsedCheck, quoted};
use super::reservation::{self, ParsedReservation, Reservation};
use crate::bounds::ATTRIBUTES_MAX;

/// A parsed command.
#[expect(
    clippy::large_enum_variant,
    reason = "a busy client's commands are nearly all checks, and a box would cost each an allocation"
)]
#[derive(Debug)]
pub enum Command<'a> {
    Check(Request<'a>, Answer),
    Reservation(Reservation<'a>),
    Control(Control<'a>),
}

/// A command about the connection itself, or one that is answered without the app.
#[derive(Debug)]
pub enum Control<'a> {
    Auth(Credentials<'a>),
    Commands,
    Hello(Hello<'a>),
    Info,
    /// A setting that has no effect here, which is answered with `OK`.
    Noted,
    Ping(Option<&'a [u8]>),
    Quit,
    /// An invalid command, with its error reply, which begins with its code.
    Refused(String),
}

#[derive(Clone, Copy, Debug)]
pub struct Credentials<'a> {
    pub(crate) user: &'a [u8],
    pub(crate) password: &'a [u8],
}

/// `HELLO [version [AUTH user password] [SETNAME name]]`. The name has no effect.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hello<'a> {
    pub(crate) version: Option<Version>,
    pub(crate) credentials: Option<Credentials<'a>>,
}

impl<'a> Command<'a> {
    /// Parses a request, which holds at least the name of a command.
    pub fn parse(request: &[&'a [u8]]) -> Command<'a> {
        let (name, arguments) = (request[0], &request[1..]);
        let Some(command) = command_named(name) else {
            return unknown(name);
        };
        if !command.takes.contains(&arguments.len()) {
            let CommandInfo { name, usage, .. } = command;
            return refused(format!(
                "ERR wrong number of arguments for {name}; write {name} {usage}"
            ));
        }
        let read = match command.read {
            Read::Check(read) => {
                read(arguments).map(|(request, answer)| Command::Check(request, answer))
            }
            Read::Reservation(read) => read(arguments).map(Command::Reservation),
            Read::Control(control) => control(arguments).map(Command::Control),
        };
        read.unwrap_or_else(|why| refused(format!("ERR {} {why}", command.name)))
    }
}

impl Control<'_> {
    /// Returns whether the command may change the meaning of the commands after it.
    pub fn ends_batch(&self) -> bool {
        matches!(self, Control::Auth(_) | Control::Hello(_) | Control::Quit)
    }

    /// Returns whether a client may send the command before the password.
    pub fn is_for_all(&self) -> bool {
        self.ends_batch() || matches!(self, Control::Ping(_))
    }
}

/// A command, and how its arguments are parsed.
struct CommandInfo {
    name: &'static str,
    usage: &'static str,
    /// The number of its arguments.
    takes: RangeInclusive<usize>,
    read: Read,
}

enum Read {
    Check(for<'a> fn(&[&'a [u8]]) -> ParsedCheck<'a>),
    Reservation(for<'a> fn(&[&'a [u8]]) -> ParsedReservation<'a>),
    Control(for<'a> fn(&[&'a [u8]]) -> Result<Control<'a>, String>),
}

/// Returns the command of this name.
fn command_named(name: &[u8]) -> Option<&'static CommandInfo> {
    COMMANDS.iter().find(|command| command.name.as_bytes().eq_ignore_ascii_case(name))
}

fn refused<'a>(message: String) -> Command<'a> {
    Command::Control(Control::Refused(message))
}

/// Returns the error for a name that no command has.
fn unknown<'a>(name: &[u8]) -> Command<'a> {
    let name = quoted(name);
    let is_of_limits = |command: &&CommandInfo| !matches!(command.read, Read::Control(_));
    let limiting = COMMANDS.iter().filter(is_of_limits).map(|command| command.name);
    let limiting: Vec<&str> = limiting.collect();
    refused(format!(
        "ERR unknown command {name}; there are {}, and commands about the connection such as PING",
        limiting.join(", ")
    ))
}

fn auth<'a>(arguments: &[&'a [u8]]) -> Result<Control<'a>, String> {
    Ok(Control::Auth(match *arguments {
        [password] => Credentials { user: USER, password },
        [user, password] => Credentials { user, password },
        _ => unreachable!("the caller has compared the number with `takes`"),
    }))
}

fn hello<'a>(arguments: &[&'a [u8]]) -> Result<Control<'a>, String> {
    let mut hello = Hello::default();
    let Some((version, mut options)) = arguments.split_first() else {
        return Ok(Control::Hello(hello));
    };
    hello.version = Some(match *version {
        b"2" => Version::Two,
        b"3" => Version::Three,
        other => {
            let other = quoted(other);
            return Ok(Control::Refused(format!(
                "NOPROTO unsupported protocol version {other}; there are 2 and 3"
            )));
        }
    });
    while let Some((option, rest)) = options.split_first() {
        options = match rest {
            [user, password, rest @ ..] if option.eq_ignore_ascii_case(b"AUTH") => {
                hello.credentials = Some(Credentials { user, password });
                rest
            }
            [_, rest @ ..] if option.eq_ignore_ascii_case(b"SETNAME") => rest,
            _ => {
                let option = quoted(option);
                return Err(format!("option {option}: write AUTH user password or SETNAME name"));
            }
        };
    }
    Ok(Control::Hello(hello))
}

fn client<'a>(arguments: &[&'a [u8]]) -> Result<Control<'a>, String> {
    let (subcommand, rest) = (arguments[0].to_ascii_uppercase(), &arguments[1..]);
    match (subcommand.as_slice(), rest) {
        (b"SETNAME", [_]) | (b"SETINFO", [_, _]) => Ok(Control::Noted),
        _ => {
            let subcommand = quoted(arguments[0]);
            Err(format!("{subcommand}: there are SETNAME name and SETINFO attribute value"))
        }
    }
}

fn select<'a>(arguments: &[&'a [u8]]) -> Result<Control<'a>, String> {
    match arguments {
        [b"0"] => Ok(Control::Noted),
        _ => {
            Err("index: there is one database, 0; distinguish clients by key or domain".to_owned())
        }
    }
}

/// All commands, the most frequent first, because a name is searched from the top.
const COMMANDS: &[CommandInfo] = &[
    CommandInfo {
        name: "CL.THROTTLE",
        usage: "key max_burst count period [quantity]",
        takes: 4..=5,
        read: Read::Check(request::cl_throttle),
    },
    CommandInfo {
        name: "SG.CHECK",
        usage: "domain cost [attribute value …], of 32 attributes at most",
        takes: 2..=2 + 2 * ATTRIBUTES_MAX,
        read: Read::Check(request::sg_check),
    },
    CommandInfo {
        name: "SG.RESERVE",
        usage: "domain cost ttl_ms id [attribute value …], of 32 attributes at most; the id may be -",
        takes: 4..=4 + 2 * ATTRIBUTES_MAX,
        read: Read::Reservation(reservation::reserve),
    },
    CommandInfo {
        name: "SG.SETTLE",
        usage: "receipt cost",
        takes: 2..=2,
        read: Read::Reservation(reservation::settle),
    },
    CommandInfo {
        name: "SG.CANCEL",
        usage: "receipt",
        takes: 1..=1,
        read: Read::Reservation(reservation::cancel),
    },
    CommandInfo {
        name: "SG.RELEASE",
        usage: "receipt",
        takes: 1..=1,
        read: Read::Reservation(reservation::release),
    },
    CommandInfo {
        name: "SG.RENEW",
        usage: "receipt ttl_ms",
        takes: 2..=2,
        read: Read::Reservation(reservation::renew),
    },
    CommandInfo {
        name: "PING",
        usage: "[message]",
        takes: 0..=1,
        read: Read::Control(|arguments| Ok(Control::Ping(arguments.first().copied()))),
    },
    CommandInfo {
        name: "HELLO",
        usage: "[version [AUTH user password] [SETNAME name]]",
        takes: 0..=6,
        read: Read::Control(hello),
    },
    CommandInfo { name: "AUTH", usage: "[user] password", takes: 1..=2, read: Read::Control(auth) },
    CommandInfo {
        name: "CLIENT",
        usage: "SETNAME name | SETINFO attribute value",
        takes: 2..=3,
        read: Read::Control(client),
    },
    CommandInfo {
        name: "COMMAND",
        usage: "[subcommand …]",
        takes: 0..=64,
        read: Read::Control(|_| Ok(Control::Commands)),
    },
    CommandInfo { name: "SELECT", usage: "index", takes: 1..=1, read: Read::Control(select) },
    CommandInfo {
        name: "INFO",
        usage: "[section …]",
        takes: 0..=64,
        read: Read::Control(|_| Ok(Control::Info)),
    },
    CommandInfo {
        name: "QUIT",
        usage: "",
        takes: 0..=0,
        read: Read::Control(|_| Ok(Control::Quit)),
    },
];

/// The user of `AUTH password`.
pub const USER: &[u8] = b"default";
