//! TLS to the store: certificates are read once, into one configuration for all connections.

use std::error::Error;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use tokio_rustls::TlsConnector;

use crate::error::{BuildError, Why};
use crate::store::Tls;

/// Builds the TLS configuration. The machine's certificate authorities are read only if it is used.
pub fn connector(tls: Option<&Tls>, is_used: bool) -> Result<TlsConnector, BuildError> {
    const PAIR: &str = "give the client's certificate chain and the key that belongs to it";
    let unusable =
        |error: rustls::Error| BuildError::Tls { why: Why::new(format!("{error}; {PAIR}"), error) };
    // Passed, not installed: other users of rustls in the process choose their own.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?
        .with_root_certificates(roots(tls.and_then(|tls| tls.ca.as_deref()), is_used)?);
    let config = match tls.and_then(|tls| tls.client.as_ref()) {
        None => builder.with_no_client_auth(),
        Some(client) => {
            let chain = certificates("the client certificate", &client.certificate)?;
            let key = PrivateKeyDer::from_pem_slice(&client.key)
                .map_err(|error| wrong("the client key is not a PEM key", error))?;
            builder.with_client_auth_cert(chain, key).map_err(unusable)?
        }
    };
    Ok(TlsConnector::from(Arc::new(config)))
}

/// Returns the given authorities, or those of the machine.
fn roots(ca: Option<&[u8]>, is_used: bool) -> Result<RootCertStore, BuildError> {
    let mut roots = RootCertStore::empty();
    match ca {
        None if !is_used => {}
        None => {
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
        Some(pem) => {
            for certificate in certificates("the CA", pem)? {
                roots
                    .add(certificate)
                    .map_err(|error| wrong("the CA is not a certificate of an authority", error))?;
            }
        }
    }
    Ok(roots)
}

fn certificates(what: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, BuildError> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => {
            let remedy = "give PEM, which begins -----BEGIN CERTIFICATE-----";
            Err(BuildError::Tls { why: format!("{what} holds no certificate; {remedy}").into() })
        }
        Err(error) => Err(wrong(&format!("{what} is not PEM"), error)),
    }
}

fn wrong(problem: &str, error: impl Error + Send + Sync + 'static) -> BuildError {
    BuildError::Tls { why: Why::new(format!("{problem}: {error}"), error) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_the_file_that_is_no_certificate() {
        let error = |tls: Tls| match connector(Some(&tls), true) {
            Err(error) => error,
            Ok(_) => panic!("these are no certificates"),
        };
        let said = |tls| error(tls).to_string();
        assert!(said(Tls::new().trusting("junk")).contains("the CA holds no certificate"));
        let broken = "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n";
        assert!(said(Tls::new().trusting(broken)).contains("the CA is not PEM"));
        let source = |tls| error(tls).source().map(ToString::to_string);
        assert!(source(Tls::new().trusting(broken)).is_some(), "the PEM parser's error");
        assert_eq!(source(Tls::new().trusting("junk")), None);
        let client = Tls::new().presenting("junk", "junk");
        assert!(said(client).contains("the client certificate holds no certificate"));
        assert!(connector(None, true).is_ok());
    }
}
