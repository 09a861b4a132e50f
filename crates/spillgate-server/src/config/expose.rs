//! `serve --expose`: listeners that other machines reach, by tokens that the process generates where no setting guards them.

use std::net::{Ipv4Addr, SocketAddr};

use super::Settings;

impl Settings {
    /// Returns the defaults of `--expose`: the default ports on every address of this machine, and tokens.
    pub(crate) fn exposed() -> Settings {
        let everywhere = |port| Some(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)));
        Settings {
            http: everywhere(8080),
            grpc: everywhere(8081),
            resp: everywhere(6380),
            admin: everywhere(8082),
            generates_tokens: true,
            ..Settings::default()
        }
    }

    /// Returns whether callers of the data listeners need a token that this process generates.
    pub(crate) fn generates_data_token(&self) -> bool {
        self.generates_tokens && self.unguarded_data_listeners().next().is_some()
    }

    /// Returns whether operators need a token that this process generates.
    pub(crate) fn generates_admin_token(&self) -> bool {
        self.generates_tokens && self.unguarded_admin().is_some()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn exposed_defaults_are_open_to_other_machines_by_generated_tokens() {
        let mut settings = Settings::exposed();
        let addresses = settings.each_data_listener().filter_map(|(_, address, _)| address);
        assert!(addresses.chain(settings.admin).all(|address| address.ip().is_unspecified()));
        assert!(settings.contradictions(&[]).is_empty());
        assert!(settings.generates_data_token() && settings.generates_admin_token());

        settings.insecure = true;
        assert!(!settings.generates_data_token() && settings.generates_admin_token());
        settings.insecure = false;
        settings.admin = Settings::default().admin;
        assert!(settings.generates_data_token() && !settings.generates_admin_token());
        (settings.http, settings.grpc) = (None, None);
        settings.resp_password_file = Some(PathBuf::from("password"));
        assert!(!settings.generates_data_token(), "RESP has its own password");
        assert!(!Settings::default().generates_data_token());
    }
}
