//! Loads the scripts into every server before the first call, including replicas that may take over.

use ::redis::Value;
use futures_util::future::join_all;

use super::Redis;
use super::address::Host;
use super::failure::Failure;
use super::script::{self, Script};
use super::shard::Shard;
use super::wire::Wire;
use crate::error::StoreError;
use crate::time::Deadline;

/// The SHA1 of the script that decides, and of the script of leases, as a server returned them.
type Shas = [String; 2];

/// The result for each server, by name.
type Loaded<E> = Vec<(String, Result<Shas, E>)>;

impl Redis {
    /// Loads the scripts into every server, in the variant that it accepts.
    pub async fn load_scripts(&self) -> Loaded<StoreError> {
        let shards = self.topology.shards();
        let successors = self.topology.follows_successors();
        let load = |shard| load_on_shard(shard, successors);
        let loaded = join_all(shards.iter().map(|(_, shard)| load(shard))).await;
        loaded.into_iter().flatten().collect()
    }
}

/// Loads the scripts into a primary, and into its replicas if calls would follow them.
async fn load_on_shard(shard: &Shard, successors: bool) -> Loaded<StoreError> {
    let primary = in_time(shard.link.dial()).await;
    let replicas = match &primary {
        Ok(wire) if successors => in_time(replicas(wire)).await,
        _ => Ok(Vec::new()),
    };
    let loaded = match &primary {
        Ok(wire) => in_time(load(wire)).await,
        Err(failure) => Err(failure.clone()),
    };
    let mut answers = vec![(shard.name.clone(), loaded)];
    match replicas {
        Ok(replicas) => {
            answers.extend(join_all(replicas.iter().map(|host| load_on_replica(shard, host))).await)
        }
        Err(failure) => answers.push((format!("replicas of {}", shard.name), Err(failure))),
    }
    answers.into_iter().map(|(name, answer)| (name, answer.map_err(StoreError::from))).collect()
}

async fn load_on_replica(shard: &Shard, host: &Host) -> (String, Result<Shas, Failure>) {
    let loaded = in_time(async {
        let wire = shard.link.server.dial_replica(host).await;
        load(&wire.map_err(|error| Failure::of(&error).unsent())?).await
    });
    (format!("{host}, a replica"), loaded.await)
}

async fn load(wire: &Wire) -> Result<Shas, Failure> {
    let mut refused = Failure::Bug("the server accepts no script".into());
    for scripts in [&script::MARKED, &script::PLAIN] {
        match load_one(wire, &scripts.decides).await {
            Ok(decides) => return Ok([decides, load_one(wire, &scripts.leases).await?]),
            Err(failure) => refused = failure,
        }
    }
    Err(refused)
}

/// Loads a script, and checks the SHA1 that the server returns.
async fn load_one(wire: &Wire, script: &Script) -> Result<String, Failure> {
    let Value::BulkString(sha) = wire.ask(&script::load(script)).await? else {
        return Err(Failure::Bug("SCRIPT LOAD returned no SHA1".into()));
    };
    let sha = String::from_utf8_lossy(&sha).into_owned();
    if sha != script.sha {
        let why = format!("SCRIPT LOAD returned the SHA1 {sha}, expected {}", script.sha);
        return Err(Failure::Bug(why));
    }
    Ok(sha)
}

/// Returns the replicas of a primary, as the primary lists them.
async fn replicas(wire: &Wire) -> Result<Vec<Host>, Failure> {
    let mut info = ::redis::cmd("INFO");
    info.arg("replication");
    let Value::BulkString(info) = wire.ask(&info).await? else { return Ok(Vec::new()) };
    Ok(String::from_utf8_lossy(&info).lines().filter_map(replica).collect())
}

/// Parses `slave0:ip=10.0.0.2,port=6379,state=online,offset=1,lag=0`.
fn replica(line: &str) -> Option<Host> {
    let (head, fields) = line.split_once(':')?;
    head.strip_prefix("slave")?.parse::<u32>().ok()?;
    let field = |name: &str| {
        fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    Some(Host { name: field("ip")?.to_owned(), port: field("port")?.parse().ok()? })
}

async fn in_time<T>(answer: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
    let late = || Err(Failure::Unknown(format!("no answer within {PATIENCE:?}")));
    Deadline::after(PATIENCE).bound(answer).await.unwrap_or_else(late)
}

/// No decision waits for this.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_the_address_of_a_replica() {
        let host = replica("slave0:ip=::1,port=6380,state=online,offset=1,lag=0").unwrap();
        assert_eq!((host.name.as_str(), host.port), ("::1", 6380));
        for line in ["slave_repl_offset:5", "role:master", "slave0:ip=a", ""] {
            assert!(replica(line).is_none(), "{line:?}");
        }
    }
}
