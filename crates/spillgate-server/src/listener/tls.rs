//! TLS of the listeners: the service's certificate, and the authority of its clients' certificates.

use std::io;
use std::path::Path;
use std::sync::{Arc, RwLock};

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::config::{self, Problem};
use crate::files;

/// The TLS configuration of a listener. Clones share it, also when its files are read again.
#[derive(Clone)]
pub(crate) struct Tls(Arc<Certificates>);

struct Certificates {
    files: config::Tls,
    protocols: Vec<Vec<u8>>,
    acceptor: RwLock<TlsAcceptor>,
}

impl Tls {
    /// Reads the files; returns `None` if none are named. `protocols` are the protocols that ALPN offers, the best
    /// first.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is invalid.
    pub(crate) fn load(files: &config::Tls, protocols: &[&str]) -> Result<Option<Tls>, Problem> {
        let protocols: Vec<_> = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
        let Some(acceptor) = acceptor(files, &protocols)? else { return Ok(None) };
        let (files, acceptor) = (files.clone(), RwLock::new(acceptor));
        Ok(Some(Tls(Arc::new(Certificates { files, protocols, acceptor }))))
    }

    /// Reads the files again, and puts them in force from the next handshake on. An error changes nothing.
    ///
    /// # Errors
    ///
    /// If a file cannot be read or is invalid.
    pub(crate) fn read_again(&self) -> Result<(), Problem> {
        let Certificates { files, protocols, acceptor: current } = &*self.0;
        if let Some(acceptor) = acceptor(files, protocols)? {
            *current.write().unwrap_or_else(|poisoned| poisoned.into_inner()) = acceptor;
        }
        Ok(())
    }

    pub async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        self.current().accept(stream).await
    }

    fn current(&self) -> TlsAcceptor {
        self.0.acceptor.read().unwrap_or_else(|poisoned| poisoned.into_inner()).clone()
    }
}

fn acceptor(files: &config::Tls, protocols: &[Vec<u8>]) -> Result<Option<TlsAcceptor>, Problem> {
    let (Some(cert), Some(key)) = (&files.cert, &files.key) else { return Ok(None) };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| Problem::of_setting("server.tls", error.to_string()))?;
    let builder = match &files.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let wrong = |why: String| Problem::of_file("server.tls.client_ca", file, why);
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file).map_err(wrong)? {
                roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            builder.with_client_cert_verifier(
                verifier.build().map_err(|error| wrong(error.to_string()))?,
            )
        }
    };
    let chain = certificates(cert).map_err(|why| Problem::of_file("server.tls.cert", cert, why))?;
    let wrong = |why: String| Problem::of_file("server.tls.key", key, why);
    let private = PrivateKeyDer::from_pem_slice(&pem(key).map_err(wrong)?)
        .map_err(|error| wrong(error.to_string()))?;
    let mut config = builder
        .with_single_cert(chain, private)
        .map_err(|error| Problem::of_file("server.tls.cert", cert, error))?;
    config.alpn_protocols = protocols.to_vec();
    Ok(Some(TlsAcceptor::from(Arc::new(config))))
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem(file)?).collect();
    let certificates = certificates.map_err(|error| error.to_string())?;
    if certificates.is_empty() {
        return Err("holds no certificate; write a PEM file, the server's own first".to_owned());
    }
    Ok(certificates)
}

fn pem(file: &Path) -> Result<Vec<u8>, String> {
    files::read(file, files::CREDENTIAL_BYTES_MAX).map_err(|error| error.to_string())
}
