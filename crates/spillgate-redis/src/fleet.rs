//! What the instances of a fleet share besides counters: guards, probes and the fleet's record.
//!
//! All keys of the record have one tag, so one server has the record, whatever the topology.

use std::sync::LazyLock;

use ::redis::{Cmd, ToRedisArgs, Value};

use crate::connecting::failure::{Failure, NotHere};
use crate::connecting::link::Redirect;
use crate::connecting::shard::Shard;
use crate::time::Deadline;

pub mod control;
pub mod guards;
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

/// A call of such a script.
#[derive(Debug)]
pub struct Call {
    script: &'static Script,
    /// The number of keys, the keys, and the other arguments.
    arguments: Vec<Vec<u8>>,
}

/// Returns the tag of the record's keys in a namespace.
pub fn tag_of_record(namespace: &str) -> String {
    format!("fleet:{namespace}")
}

impl Call {
    fn new(script: &'static Script, keys: &[String]) -> Call {
        Call { script, arguments: Vec::new() }.with(keys.len()).with(keys)
    }

    fn with(mut self, arguments: impl ToRedisArgs) -> Call {
        arguments.write_redis_args(&mut self.arguments);
        self
    }

    /// Returns the command that has the script.
    pub fn whole(&self) -> Cmd {
        self.command("EVAL", self.script.text)
    }

    /// Runs the call on a shard.
    pub(crate) async fn run(
        &self,
        shard: &Shard,
        redirect: Redirect,
        deadline: Deadline,
    ) -> Result<Value, Failure> {
        if let Some(sha) = &self.script.sha {
            let by_name = self.command("EVALSHA", sha);
            match shard.link.command(&by_name, redirect, deadline).await {
                Err(Failure::NotHere(NotHere::NoScript, _)) => {}
                answered => return answered,
            }
        }
        shard.link.command(&self.whole(), redirect, deadline).await
    }

    fn command(&self, name: &str, script: &str) -> Cmd {
        let mut command = ::redis::cmd(name);
        command.arg(script).arg(&self.arguments);
        command
    }
}

static BEAT: Script = Script {
    text: include_str!("lua/beat.lua"),
    sha: Some(LazyLock::new(|| ::redis::Script::new(BEAT.text).get_hash().to_owned())),
};
static CHANGES: Script = Script { text: include_str!("lua/control.lua"), sha: None };
static GUARD: Script = Script { text: include_str!("lua/guard.lua"), sha: None };
static INSTANCES: Script = Script { text: include_str!("lua/instances.lua"), sha: None };
