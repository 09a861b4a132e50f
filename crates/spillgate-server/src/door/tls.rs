//! TLS for the doors: our certificate, and whose certificates callers must show.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::{self, Problem};

/// How a door greets its callers. Clones share it.
#[derive(Clone)]
pub(crate) struct Tls(TlsAcceptor);

impl Tls {
    /// Reads the files; none named means no TLS. `protocols` is what ALPN offers, the best first.
    pub(crate) fn of(files: &config::Tls, protocols: &[&str]) -> Result<Option<Tls>, Problem> {
        let (Some(cert), Some(key)) = (&files.cert, &files.key) else { return Ok(None) };
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| Problem::of_setting("server.tls", error.to_string()))?;
        let builder = match &files.client_ca {
            None => builder.with_no_client_auth(),
            Some(file) => {
                let wrong = |why: String| of_file("server.tls.client_ca", file, &why);
                let mut roots = RootCertStore::empty();
                for certificate in certificates(file).map_err(wrong)? {
                    roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
                }
                let verifier =
                    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
                builder.with_client_cert_verifier(
                    verifier.build().map_err(|error| wrong(error.to_string()))?,
                )
            }
        };
        let chain = certificates(cert).map_err(|why| of_file("server.tls.cert", cert, &why))?;
        let private = PrivateKeyDer::from_pem_file(key)
            .map_err(|error| of_file("server.tls.key", key, &error.to_string()))?;
        let mut config = builder
            .with_single_cert(chain, private)
            .map_err(|error| of_file("server.tls.cert", cert, &error.to_string()))?;
        config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        Ok(Some(Tls(TlsAcceptor::from(Arc::new(config)))))
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.0.accept(stream).await
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("holds no certificate; write a PEM file, the server's own first".to_owned());
    }
    Ok(certificates)
}

fn of_file(setting: &str, file: &Path, why: &str) -> Problem {
    Problem::of_setting(setting, format!("{}: {why}", file.display()))
}
