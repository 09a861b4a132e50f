//! What the instances of a fleet share besides counters: guards, probes and the fleet's record.
//!
//! All keys of the record have one tag, so one server has the record, whatever the topology.

use std::sync::LazyLock;

use ::redis::{Cmd, ToRedisArgs, Value};

use crate::connecting::failure::{Failure, NotHere};
use crate::connecting::link::Redirect;
use crate::connecting::shard::Shard;
use crate::time::Deadline;

pub mod audit;
pub mod control;
pub mod denials;
pub mod guards;
pub mod history;
pub mod instances;
pub mod probe;
pub mod probing;

/// A script of the record. One that runs every second is sent by name, and whole to a server that does not know it; the
/// others are always sent whole.
#[derive(Debug)]
pub struct Script {
    text: &'static str,
    sha: Option<LazyLock<String>>,
}

/// A call of such a script, or of one command.
#[derive(Debug)]
pub struct Call {
    callee: Callee,
    /// Of a script, the number of keys comes first.
    arguments: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug)]
enum Callee {
    Script(&'static Script),
    Command(&'static str),
}

/// Returns the tag of the record's keys in a namespace.
pub fn tag_of_record(namespace: &str) -> String {
    format!("fleet:{namespace}")
}

impl Call {
    fn new(script: &'static Script, keys: &[String]) -> Call {
        let callee = Callee::Script(script);
        Call { callee, arguments: Vec::new() }.with(keys.len()).with(keys)
    }

    fn of_command(name: &'static str) -> Call {
        Call { callee: Callee::Command(name), arguments: Vec::new() }
    }

    fn with(mut self, arguments: impl ToRedisArgs) -> Call {
        arguments.write_redis_args(&mut self.arguments);
        self
    }

    /// Returns the command that has the script, or the only command.
    pub fn whole(&self) -> Cmd {
        let mut command = match self.callee {
            Callee::Script(script) => {
                let mut eval = ::redis::cmd("EVAL");
                eval.arg(script.text);
                eval
            }
            Callee::Command(name) => ::redis::cmd(name),
        };
        command.arg(&self.arguments);
        command
    }

    /// Runs the call on a shard.
    pub(crate) async fn run(
        &self,
        shard: &Shard,
        redirect: Redirect,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        if let Callee::Script(Script { sha: Some(sha), .. }) = self.callee {
            let mut by_name = ::redis::cmd("EVALSHA");
            by_name.arg(&**sha).arg(&self.arguments);
            match shard.link.command(&by_name, redirect, deadline).await {
                Err(Failure::NotHere(NotHere::NoScript, _)) => {}
                answered => return answered,
            }
        }
        shard.link.command(&self.whole(), redirect, deadline).await
    }
}

static BEAT: Script = Script {
    text: include_str!("lua/beat.lua"),
    sha: Some(LazyLock::new(|| ::redis::Script::new(BEAT.text).get_hash().to_owned())),
};
static CHANGES: Script = Script { text: include_str!("lua/control.lua"), sha: None };
static GUARD: Script = Script { text: include_str!("lua/guard.lua"), sha: None };
static INSTANCES: Script = Script { text: include_str!("lua/instances.lua"), sha: None };
static DENIALS: Script = Script { text: include_str!("lua/denials.lua"), sha: None };
static DENIALS_OF: Script = Script { text: include_str!("lua/denials_of.lua"), sha: None };
static DENIALS_PAGE: Script = Script { text: include_str!("lua/denials_page.lua"), sha: None };
static HISTORY: Script = Script { text: include_str!("lua/history.lua"), sha: None };
static HISTORY_OF: Script = Script { text: include_str!("lua/history_of.lua"), sha: None };
