//! Problems between several settings: listeners that remote clients reach without a guard, and files that take effect
//! only together with others.

use std::net::SocketAddr;
use std::path::PathBuf;

use super::{Given, Listen, Problem, Settings, Tls};
use crate::files;

impl Settings {
    /// Returns the problems between several settings.
    pub(crate) fn contradictions(&self, given: &[Given]) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !self.generates_tokens {
            let exposed = |(name, address)| Problem::of_setting(name, unguarded(address));
            problems.extend(self.unguarded_data_listeners().map(exposed));
            problems.extend(self.unguarded_admin());
        }
        problems.extend(self.tls.contradiction());
        problems.extend(self.auth.contradiction());
        problems.extend(self.store.contradictions(given));
        problems
    }

    /// Returns a problem if other machines reach the admin listener without a token. Its clients may lift every limit,
    /// so `insecure` does not open it.
    pub(crate) fn unguarded_admin(&self) -> Option<Problem> {
        let address = self.admin.filter(|address| is_exposed(*address))?;
        let message = format!(
            "{address} is open to other machines; listen on 127.0.0.1:{}, or start with --expose, which \
             generates a token and prints it, or ask callers for a token with admin_token_file under [server]",
            address.port()
        );
        self.admin_token_file.is_none().then(|| Problem::of_setting("server.admin", message))
    }

    /// Returns whether other machines reach a data listener.
    pub(crate) fn data_is_exposed(&self) -> bool {
        self.each_data_listener().any(|(_, address, _)| address.is_some_and(is_exposed))
    }

    /// Returns whether remote clients reach a listener that takes reservations, while receipts are sealed with the
    /// default secret, which is public.
    pub(crate) fn remote_clients_can_forge_receipts(&self) -> bool {
        let exposed = [self.http, self.resp].into_iter().flatten().any(is_exposed);
        exposed && self.store.key_secret_file.is_none()
    }

    /// Returns whether the service records denials. It does not where other machines reach a listener and no secret is
    /// set, because the default secret, which seals the record on the store, is public.
    pub(crate) fn records_denials(&self) -> bool {
        let admin_is_exposed = self.admin.is_some_and(is_exposed);
        let exposed = self.data_is_exposed() || admin_is_exposed;
        let sealed_for_all = self.store.is_shared() && self.store.key_secret_file.is_none();
        !(self.store.without_denials || exposed && sealed_for_all)
    }

    /// Returns whether every web page that a browser of this machine shows could send requests to this address:
    /// it is on loopback, and callers need no token and no certificate.
    pub(crate) fn is_open_to_pages(&self, address: SocketAddr) -> bool {
        let guarded = self.data_token_file.is_some() || self.tls.client_ca.is_some();
        !guarded && !self.generates_data_token() && !is_exposed(address)
    }

    /// Returns the number of listeners that decide and are on.
    pub(crate) fn data_listeners(&self) -> usize {
        self.each_data_listener().filter(|(_, address, _)| address.is_some()).count()
    }

    /// Returns the files of secrets that every user of this machine may read: setting and file.
    pub(crate) fn open_secrets(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let is_secret = |name: &str| name.ends_with("_file") || name.ends_with(".key");
        self.files().filter(move |(name, file)| is_secret(name) && files::is_open_to_all(file))
    }

    /// Returns the settings that name a file that this process cannot read, so that the service would not start, each
    /// with the reason.
    pub fn unreadable_files(&self) -> Vec<(&'static str, String)> {
        let unreadable = self.files().filter_map(|(name, file)| {
            let why = files::read(file, files::CREDENTIAL_BYTES_MAX).err()?;
            Some((name, format!("{}: {why}", file.display())))
        });
        unreadable.collect()
    }

    /// Returns the files of secrets and certificates that settings name.
    fn files(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let (tls, store) = (&self.tls, &self.store);
        let files = [
            ("server.data_token_file", &self.data_token_file),
            ("server.admin_token_file", &self.admin_token_file),
            ("server.resp.password_file", &self.resp_password_file),
            ("server.tls.cert", &tls.cert),
            ("server.tls.key", &tls.key),
            ("server.tls.client_ca", &tls.client_ca),
            ("store.password_file", &store.password_file),
            ("store.sentinel.password_file", &store.sentinel_password_file),
            ("store.key_secret_file", &store.key_secret_file),
            ("store.tls.ca", &store.tls.ca),
            ("store.tls.cert", &store.tls.cert),
            ("store.tls.key", &store.tls.key),
        ];
        files.into_iter().filter_map(|(name, file)| Some((name, file.as_ref()?)))
    }

    /// Returns the data listeners that other machines reach without a token or a certificate, and without `insecure`.
    pub(crate) fn unguarded_data_listeners(
        &self,
    ) -> impl Iterator<Item = (&'static str, SocketAddr)> {
        let guarded =
            self.insecure || self.data_token_file.is_some() || self.tls.client_ca.is_some();
        self.each_data_listener().filter_map(move |(name, address, own)| {
            let address = address.filter(|address| is_exposed(*address))?;
            (!guarded && own.is_none()).then_some((name, address))
        })
    }

    /// Returns the listeners that decide: setting, address, and the file of a password of their own.
    pub(crate) fn each_data_listener(
        &self,
    ) -> impl Iterator<Item = (&'static str, Listen, Option<&PathBuf>)> {
        [
            ("server.http", self.http, None),
            ("server.grpc.address", self.grpc, None),
            ("server.resp.address", self.resp, self.resp_password_file.as_ref()),
        ]
        .into_iter()
    }
}

impl Tls {
    /// Returns these files without `client_ca`, for a listener that asks for no certificates.
    pub(crate) fn without_client_ca(&self) -> Tls {
        Tls { client_ca: None, ..self.clone() }
    }

    fn contradiction(&self) -> Option<Problem> {
        let message = match (&self.cert, &self.key, &self.client_ca) {
            (Some(_), Some(_), _) | (None, None, None) => return None,
            (Some(_), None, _) => NO_KEY,
            (None, Some(_), _) => NO_CERT,
            (None, None, Some(_)) => "client_ca takes effect with cert and key: name both",
        };
        Some(Problem::of_setting("server.tls", message.to_owned()))
    }
}

fn is_exposed(address: SocketAddr) -> bool {
    !address.ip().to_canonical().is_loopback()
}

fn unguarded(address: SocketAddr) -> String {
    let port = address.port();
    format!(
        "{address} is open to other machines; listen on 127.0.0.1:{port}, or start with --expose, which \
         generates tokens and prints them, or ask callers for a token with data_token_file, or for a \
         certificate with client_ca under [server.tls], or, where the network keeps strangers out, write \
         insecure = true under [server] or set SPILLGATE_SERVER__INSECURE=true"
    )
}

pub const NO_KEY: &str = "key is missing: name the file of the certificate's private key";
pub const NO_CERT: &str = "cert is missing: name the file of the certificate's chain";
