//! One strict decision per call on several servers. On a ring, decisions for one server share a call; on a
//! Cluster, only decisions of one hash slot do.

use std::sync::Arc;
use std::time::Duration;

use redis::cluster::ClusterClientBuilder;
use redis::cluster_async::ClusterConnection;
use redis::cmd;
use spillgate::store::Ring;
use spillgate::{Limiter, LimiterBuilder, Request};
use spillgate_testkit::{Cluster, RedisServer};
use tokio::runtime::Runtime;

use crate::Outcome;
use crate::baseline::{Baseline, TOKEN_BUCKET, limit, take};
use crate::load::{drive_on, key, runtime};
use crate::rounds::{Effort, Rounds, Run};
use crate::table::{Floor, Row, Table};

pub fn against_bare_scripts(effort: Effort) -> Outcome {
    Ok(vec![on_a_ring(effort)?, on_a_cluster(effort)?])
}

/// Against bare scripts over the same number of connections, each sent to the server that the key's number
/// selects.
fn on_a_ring(effort: Effort) -> Result<Table, Box<dyn std::error::Error>> {
    let servers = [RedisServer::start(), RedisServer::start()];
    let runtime = runtime();
    let ring = Ring::new().node("a", servers[0].url()).node("b", servers[1].url());
    let limiter = runtime.block_on(patient(Limiter::builder().ring(ring)).build())?;
    let bare = Arc::new([
        runtime.block_on(Baseline::connect(&servers[0]))?,
        runtime.block_on(Baseline::connect(&servers[1]))?,
    ]);
    let scene = Scene { effort, runtime: &runtime, servers: &servers };
    let theirs = || {
        let bare = Arc::clone(&bare);
        scene.run(move |caller, call| {
            let bare = Arc::clone(&bare);
            async move { bare[call % 2].check(&format!("bare:{}", key(caller, call))).await }
        })
    };
    let rounds = Rounds::of(effort, &mut [Box::new(|| scene.ours(&limiter)), Box::new(theirs)]);
    let title = format!(
        "Redis, a ring of two, distinct keys, {CALLERS} callers; baseline: bare EVALSHA at either"
    );
    Ok(Table { title, rows: rows(&rounds, 1.4) })
}

/// Against bare scripts through the client library's own cluster connection.
fn on_a_cluster(effort: Effort) -> Result<Table, Box<dyn std::error::Error>> {
    let cluster = Cluster::start(3, 0);
    let runtime = runtime();
    let limiter = runtime.block_on(patient(Limiter::builder().cluster(cluster.urls())).build())?;
    let bare = runtime.block_on(Bare::connect(&cluster))?;
    let scene = Scene { effort, runtime: &runtime, servers: cluster.nodes() };
    let theirs = || {
        let bare = bare.clone();
        scene.run(move |caller, call| {
            let bare = bare.clone();
            async move { bare.check(&format!("bare:{}", key(caller, call))).await }
        })
    };
    let rounds = Rounds::of(effort, &mut [Box::new(|| scene.ours(&limiter)), Box::new(theirs)]);
    let title = format!(
        "Redis Cluster of three, distinct keys, {CALLERS} callers; baseline: bare EVALSHA through the client's cluster connection"
    );
    Ok(Table { title, rows: rows(&rounds, 1.0) })
}

fn rows(rounds: &Rounds, at_least: f64) -> Vec<Row> {
    vec![
        rounds.rate_row("decisions", 0, 1, Floor::AtLeast(at_least)),
        rounds.cpu_row("Redis CPU each", 0, 1, Floor::Nothing),
    ]
}

/// Long enough that a busy machine measures slow decisions and no outages.
fn patient(builder: LimiterBuilder) -> LimiterBuilder {
    builder.timeout(Duration::from_secs(5))
}

#[derive(Clone, Copy)]
struct Scene<'s> {
    effort: Effort,
    runtime: &'s Runtime,
    servers: &'s [RedisServer],
}

impl Scene<'_> {
    fn ours(self, limiter: &Limiter) -> Run {
        let limiter = limiter.clone();
        self.run(move |caller, call| {
            let limiter = limiter.clone();
            async move {
                let limit = limit();
                limiter.check(&Request::keyed(key(caller, call), &limit)).await.allowed()
            }
        })
    }

    fn run<F>(self, check: impl Fn(usize, usize) -> F + Clone + Send + 'static) -> Run
    where
        F: Future<Output = bool> + Send,
    {
        drive_on(self.runtime, self.servers, CALLERS, self.effort.span, move |caller, call| {
            let check = check(caller, call);
            async move {
                check.await;
                1
            }
        })
    }
}

/// The bare script on a cluster.
#[derive(Clone)]
struct Bare {
    connection: ClusterConnection,
    sha: Arc<str>,
}

impl Bare {
    async fn connect(cluster: &Cluster) -> redis::RedisResult<Bare> {
        let timeout = Duration::from_secs(5);
        let client = ClusterClientBuilder::new(cluster.urls())
            .connection_timeout(timeout)
            .response_timeout(timeout)
            .build()?;
        let mut connection = client.get_async_connection().await?;
        // Loaded at every primary; each returns the same hash.
        let sha: String =
            cmd("SCRIPT").arg("LOAD").arg(TOKEN_BUCKET).query_async(&mut connection).await?;
        Ok(Bare { connection, sha: sha.into() })
    }

    async fn check(&self, key: &str) -> bool {
        take(&mut self.connection.clone(), &self.sha, key).await
    }
}

const CALLERS: usize = 200;
