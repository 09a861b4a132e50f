//! A server with TLS, and certificates made for it.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use crate::folder::Folder;
use crate::port::free_port;
use crate::redis_server::{RedisServer, redis_on_path};

/// An authority made for one test, and the certificates that it has signed.
#[derive(Debug)]
pub struct Certificates {
    folder: Folder,
}

impl Certificates {
    /// Makes a new authority, with a certificate for a server at `localhost` and 127.0.0.1, and one for a client.
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

    /// Returns the authority's certificate.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.folder.0.join("ca.crt")
    }

    /// Returns the server's certificate.
    #[must_use]
    pub fn server(&self) -> PathBuf {
        self.folder.0.join("server.crt")
    }

    /// Returns the server's key.
    #[must_use]
    pub fn server_key(&self) -> PathBuf {
        self.folder.0.join("server.key")
    }

    /// Returns the client's certificate.
    #[must_use]
    pub fn client(&self) -> PathBuf {
        self.folder.0.join("client.crt")
    }

    /// Returns the client's key.
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

/// A Redis with TLS on one port, and without it, for the test itself, on another.
#[derive(Debug)]
pub struct TlsServer {
    /// The server; its own URL is the one without TLS.
    pub server: RedisServer,
    /// The certificates of the server and of its authority.
    pub certificates: Certificates,
    port: u16,
}

/// Whether a client must present a certificate too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientCertificate {
    /// A client needs no certificate.
    NotAsked,
    /// A client without a certificate of the authority is turned away.
    Required,
}

impl TlsServer {
    /// Starts the `redis-server` on PATH, with certificates of its own.
    ///
    /// # Panics
    /// As [`RedisServer::start`] and [`Certificates::make`].
    #[track_caller]
    #[must_use]
    pub fn start(client: ClientCertificate) -> Self {
        let certificates = Certificates::make();
        let text = |path: PathBuf| path.to_string_lossy().into_owned();
        let port = free_port();
        let required = match client {
            ClientCertificate::NotAsked => "no",
            ClientCertificate::Required => "yes",
        };
        let arguments = [
            ("--tls-port", port.to_string()),
            ("--tls-ca-cert-file", text(certificates.authority())),
            ("--tls-cert-file", text(certificates.server())),
            ("--tls-key-file", text(certificates.server_key())),
            ("--tls-auth-clients", required.to_owned()),
        ];
        let arguments: Vec<&str> =
            arguments.iter().flat_map(|(name, value)| [*name, value]).collect();
        let server = RedisServer::start_with(&redis_on_path(), &arguments);
        Self { server, certificates, port }
    }

    /// Returns `rediss://127.0.0.1:port`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("rediss://127.0.0.1:{}", self.port)
    }

    /// Returns the port with TLS.
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

    /// Returns the server's answer to PING over TLS, as openssl's own client receives it.
    fn ping(port: u16, authority: &Path, client: Option<&Certificates>) -> String {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-verify_return_error", "-connect"]);
        command.arg(format!("127.0.0.1:{port}")).arg("-CAfile").arg(authority);
        if let Some(client) = client {
            command.arg("-cert").arg(client.client()).arg("-key").arg(client.client_key());
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut client = command.spawn().unwrap();
        // A client that is turned away may be gone before it can write.
        let _ = client.stdin.take().unwrap().write_all(b"PING\r\nQUIT\r\n");
        String::from_utf8_lossy(&client.wait_with_output().unwrap().stdout).into_owned()
    }

    #[test]
    fn only_the_servers_own_authority_verifies_it() {
        let tls = TlsServer::start(ClientCertificate::NotAsked);
        assert!(ping(tls.port(), &tls.certificates.authority(), None).contains("PONG"));
        let stranger = Certificates::make();
        assert_eq!(ping(tls.port(), &stranger.authority(), None), "");
        assert_eq!(tls.server.command(&["PING"]).text(), "PONG");
    }

    #[test]
    fn a_client_presents_a_certificate_if_one_is_required() {
        let tls = TlsServer::start(ClientCertificate::Required);
        let authority = tls.certificates.authority();
        assert!(!ping(tls.port(), &authority, None).contains("PONG"));
        assert!(!ping(tls.port(), &authority, Some(&Certificates::make())).contains("PONG"));
        assert!(ping(tls.port(), &authority, Some(&tls.certificates)).contains("PONG"));
    }
}
