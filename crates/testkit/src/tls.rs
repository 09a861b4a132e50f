//! A server that speaks TLS, and certificates made for it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::folder::Folder;
use crate::port::free_port;
use crate::redis_server::{RedisServer, redis_on_path};

/// An authority made for one test, and what it has signed; no other authority's is taken for it.
#[derive(Debug)]
pub struct Certificates {
    folder: Folder,
}

impl Certificates {
    /// A new authority, with a server that is `localhost` and 127.0.0.1, and a client.
    ///
    /// # Panics
    /// When there is no `openssl` on PATH.
    #[track_caller]
    #[must_use]
    pub fn make() -> Self {
        let made = Self { folder: Folder::create() };
        made.key("ca");
        made.openssl(&format!(
            "req -x509 -new -key ca.key -out ca.crt -days 2 -subj /CN=spillgate-test-authority \
             -addext {CA_ONLY}"
        ));
        made.sign("server", "subjectAltName=DNS:localhost,IP:127.0.0.1");
        made.sign("client", "extendedKeyUsage=clientAuth");
        made
    }

    /// The authority's certificate.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.folder.0.join("ca.crt")
    }

    /// The server's certificate.
    #[must_use]
    pub fn server(&self) -> PathBuf {
        self.folder.0.join("server.crt")
    }

    /// The server's key.
    #[must_use]
    pub fn server_key(&self) -> PathBuf {
        self.folder.0.join("server.key")
    }

    /// The client's certificate.
    #[must_use]
    pub fn client(&self) -> PathBuf {
        self.folder.0.join("client.crt")
    }

    /// The client's key.
    #[must_use]
    pub fn client_key(&self) -> PathBuf {
        self.folder.0.join("client.key")
    }

    #[track_caller]
    fn sign(&self, name: &str, extension: &str) {
        self.key(name);
        self.folder.write(&format!("{name}.ext"), &format!("{extension}\n"));
        self.openssl(&format!("req -new -key {name}.key -out {name}.csr -subj /CN={name}"));
        self.openssl(&format!(
            "x509 -req -in {name}.csr -CA ca.crt -CAkey ca.key -CAcreateserial -out {name}.crt \
             -days 2 -extfile {name}.ext"
        ));
    }

    #[track_caller]
    fn key(&self, name: &str) {
        self.openssl(&format!(
            "genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out {name}.key"
        ));
    }

    #[track_caller]
    fn openssl(&self, arguments: &str) {
        let mut command = Command::new("openssl");
        command.args(arguments.split_whitespace()).current_dir(&self.folder.0).stdin(Stdio::null());
        match command.output() {
            Ok(output) if output.status.success() => {}
            Ok(output) => {
                panic!("openssl {arguments} failed: {}", String::from_utf8_lossy(&output.stderr))
            }
            Err(error) => panic!("cannot run openssl, which makes the certificates: {error}"),
        }
    }
}

/// A Redis that speaks TLS on one port, and plainly, for the test itself, on another.
#[derive(Debug)]
pub struct TlsServer {
    /// The server; its own url is the plain one.
    pub server: RedisServer,
    /// What it shows, and what signed it.
    pub certificates: Certificates,
    port: u16,
}

/// Whether a client has to show a certificate too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// It may stay unknown.
    NotAsked,
    /// Without one that the authority signed it is turned away.
    Required,
}

impl TlsServer {
    /// The `redis-server` on PATH, with certificates of its own.
    ///
    /// # Panics
    /// As [`RedisServer::start`] and [`Certificates::make`].
    #[track_caller]
    #[must_use]
    pub fn start(client: ClientCertificate) -> Self {
        let certificates = Certificates::make();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let port = free_port();
        let asked = match client {
            ClientCertificate::NotAsked => "no",
            ClientCertificate::Required => "yes",
        };
        let arguments = [
            ("--tls-port", port.to_string()),
            ("--tls-ca-cert-file", text(certificates.authority())),
            ("--tls-cert-file", text(certificates.server())),
            ("--tls-key-file", text(certificates.server_key())),
            ("--tls-auth-clients", asked.to_owned()),
        ];
        let arguments: Vec<&str> =
            arguments.iter().flat_map(|(name, value)| [*name, value]).collect();
        let server = RedisServer::start_with(&redis_on_path(), &arguments);
        Self { server, certificates, port }
    }

    /// `rediss://127.0.0.1:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port)
    }

    /// The port that speaks TLS.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }
}

const CA_ONLY: &str = "keyUsage=critical,keyCertSign,cRLSign";

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::Path;

    use super::*;

    /// What the server answers to PING over TLS, asked by openssl's own client.
    fn ping(port: u16, authority: &Path, client: Option<&Certificates>) -> String {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-verify_return_error", "-connect"]);
        command.arg(format!("127.0.0.1:{port}")).arg("-CAfile").arg(authority);
        if let Some(client) = client {
            command.arg("-cert").arg(client.client()).arg("-key").arg(client.client_key());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = command.spawn().unwrap();
        // Turned away, it may be gone before it is told anything.
        let _ = client.stdin.take().unwrap().write_all(b"PING\r\nQUIT\r\n");
        String::from_utf8_lossy(&client.wait_with_output().unwrap().stdout).into_owned()
    }

    #[test]
    fn only_its_own_authority_vouches_for_the_server() {
        let tls = TlsServer::start(ClientCertificate::NotAsked);
        assert!(ping(tls.port(), &tls.certificates.authority(), None).contains("PONG"));
        let stranger = Certificates::make();
        assert_eq!(ping(tls.port(), &stranger.authority(), None), "");
        assert_eq!(tls.server.command(&["PING"]).text(), "PONG");
    }

    #[test]
    fn a_client_shows_a_certificate_where_one_is_required() {
        let tls = TlsServer::start(ClientCertificate::Required);
        let authority = tls.certificates.authority();
        assert!(!ping(tls.port(), &authority, None).contains("PONG"));
        assert!(!ping(tls.port(), &authority, Some(&Certificates::make())).contains("PONG"));
        assert!(ping(tls.port(), &authority, Some(&tls.certificates)).contains("PONG"));
    }
}
