//! A store that another process has started, named by the environment, so that one suite runs on any
//! topology. Tests on it run one at a time, and each begins by emptying it.

use spillgate::LimiterBuilder;
use spillgate::store::Ring;
use spillgate_redis::store::Store;
use spillgate_testkit::Connection;

/// Its kind and its addresses.
#[derive(Clone, Debug)]
pub(crate) struct Given {
    kind: String,
    urls: Vec<String>,
}

impl Given {
    /// Returns the variable to set for a process that runs the suite.
    pub(crate) fn variable(
        kind: &str,
        urls: &[String],
        primaries: &[u16],
    ) -> (&'static str, String) {
        let ports: Vec<String> = primaries.iter().map(u16::to_string).collect();
        (VARIABLE, format!("{kind} {} {}", urls.join(","), ports.join(",")))
    }

    /// Returns the store, emptied, if the environment names one.
    pub(crate) fn emptied() -> Option<Given> {
        let text = std::env::var(VARIABLE).ok()?;
        let [kind, urls, ports] = text.split(' ').collect::<Vec<_>>().try_into().unwrap();
        for port in ports.split(',') {
            Connection::open(port.parse().unwrap()).unwrap().command(&["FLUSHALL"]).unwrap();
        }
        let urls = urls.split(',').map(str::to_owned).collect();
        Some(Given { kind: kind.to_owned(), urls })
    }

    pub(crate) fn store(&self) -> Store {
        let urls = self.urls.clone();
        match self.kind.as_str() {
            "cluster" => Store::Cluster(urls),
            "ring" => Store::Ring(self.ring()),
            "sentinel" => Store::Sentinel { master: MASTER.into(), urls, password: None },
            _ => Store::Url(urls[0].clone()),
        }
    }

    pub(crate) fn under(&self, limiter: LimiterBuilder) -> LimiterBuilder {
        match self.kind.as_str() {
            "cluster" => limiter.cluster(&self.urls),
            "ring" => limiter.ring(self.ring()),
            "sentinel" => limiter.sentinel(MASTER, &self.urls),
            _ => limiter.redis(&self.urls[0]),
        }
    }

    fn ring(&self) -> Ring {
        let named = self.urls.iter().zip('a'..);
        named.fold(Ring::new(), |ring, (url, name)| ring.node(name, url))
    }
}

const VARIABLE: &str = "SPILLGATE_TEST_STORE";
const MASTER: &str = spillgate_testkit::Sentinels::NAME;
