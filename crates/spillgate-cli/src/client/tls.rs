//! TLS to a server, by the authority of a file or by those of the machine.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use spillgate_tools::Failure;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// Shakes hands with the server called `host`, whose certificate an authority must have signed.
pub async fn shake_hands(
    stream: TcpStream,
    host: &str,
    ca: Option<&Path>,
) -> Result<TlsStream<TcpStream>, Failure> {
    // Passed, not installed: other users of rustls in the process choose their own.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(authorities(ca)?)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let host = ServerName::try_from(host.to_owned())?;
    let shaken = connector.connect(host, stream).await;
    shaken.map_err(|error| format!("TLS: {error}; {}", advice(&error)).into())
}

/// Returns a way out of a failed handshake.
fn advice(error: &io::Error) -> &'static str {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref());
    match cause {
        Some(rustls::Error::InvalidCertificate(_)) => {
            "name the file of the authority that signed the certificate with --ca"
        }
        _ => "does the server speak https? if not, write http:// in --url",
    }
}

fn authorities(ca: Option<&Path>) -> Result<RootCertStore, Failure> {
    let mut roots = RootCertStore::empty();
    let Some(file) = ca else {
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        return Ok(roots);
    };
    let wrong = |why: String| format!("--ca: {}: {why}; name a file in PEM", file.display());
    let certificates = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    let certificates: Vec<_> = certificates.map_err(|error| wrong(error.to_string()))?;
    for certificate in certificates {
        roots.add(certificate).map_err(|error| wrong(error.to_string()))?;
    }
    match roots.is_empty() {
        true => Err(wrong("holds no certificate".to_owned()).into()),
        false => Ok(roots),
    }
}
